"""Names: the allowed ones, and the lowest free one."""

import pytest

from psframework.errors import ArgumentError
from psframework.membership.names import check_key, check_name, free_name


@pytest.mark.parametrize("name", ["w", "worker-0", "a.b:c_D-9", "x" * 127])
def test_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 128, "a b", "a/b", "ä", "a\n", "a\x00"])
def test_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="1 to 127"):
        check_name(name)


def test_the_message_says_what_it_names() -> None:
    with pytest.raises(ArgumentError, match="job 'a b'"):
        check_name("a b", "job")


def test_lowest_free_number() -> None:
    assert free_name("worker", set()) == "worker-0"
    assert free_name("worker", {"worker-0", "worker-1", "worker-3"}) == "worker-2"


def test_a_stage_is_named_shorter_than_its_role() -> None:
    assert free_name("pipeline-stage", {"stage-0", "pipeline-stage-1"}) == "stage-1"
    assert free_name("pipeline", set()) == "pipeline-0"


def test_keys() -> None:
    assert check_key("jobs/a/ö") == "jobs/a/ö"
    for key in ("", "x" * 513, "ö" * 257):
        with pytest.raises(ArgumentError, match="512 bytes"):
            check_key(key)
