"""Handlers that come late: until then every call is told to come again."""

from psframework.cluster.late import LateHandlers


def test_late_handlers_know_nothing_more_than_those_they_are_given() -> None:
    class Details:
        method = "/a/B"

    late = LateHandlers()
    assert late.service(Details()) is not None
    late.handlers = ()
    assert late.service(Details()) is None
