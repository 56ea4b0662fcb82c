"""The method table: paths, inline handlers, and errors that help."""

from collections.abc import Sequence

import pytest
from google.protobuf.empty_pb2 import Empty

from psframework.errors import ArgumentError, NotRegistered
from psframework.rpc.call import Call
from psframework.rpc.service import Method, MethodTable


class Service:
    name = "test.Service"

    def methods(self) -> Sequence[Method]:
        return [Method("Plain", Empty, Empty, self.plain), Method("Slow", Empty, Empty, self.slow)]

    def plain(self, request: Empty, call: Call) -> Empty:
        return request

    async def slow(self, request: Empty, call: Call) -> Empty:
        return request


def test_finds_methods_and_knows_which_run_inline() -> None:
    table = MethodTable([Service()])
    assert table.find("/test.Service/Plain")[1] is True
    assert table.find("/test.Service/Slow")[1] is False
    assert [path for path, _ in table.items()] == ["/test.Service/Plain", "/test.Service/Slow"]


def test_an_unknown_method_names_near_ones() -> None:
    with pytest.raises(NotRegistered, match=r"near: /test\.Service/Plain"):
        MethodTable([Service()]).find("/test.Service/Plane")
    with pytest.raises(NotRegistered, match="nothing"):
        MethodTable().find("/x/y")


def test_two_services_of_one_name_are_refused() -> None:
    with pytest.raises(ArgumentError, match="twice"):
        MethodTable([Service(), Service()])


@pytest.mark.parametrize("path", ["RemoteService/Describe", "RemoteService/Invoke", "RRefService/ListRRefs"])
def test_a_process_that_runs_no_functions_says_so(path: str) -> None:
    with pytest.raises(NotRegistered, match="runs no functions and keeps no values for others"):
        MethodTable([]).find(f"/psframework.proto.v1.{path}")
