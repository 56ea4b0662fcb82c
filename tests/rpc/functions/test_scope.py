"""A scope travels with calls, and is there when their arguments are read."""

from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from psframework.errors import ArgumentError
from psframework.rpc.call import PeerInfo
from psframework.rpc.functions import scope

PEER = PeerInfo("somebody", "trainer", "", 7)


class Noted:
    def __init__(self) -> None:
        self.inside = ContextVar("inside", default=b"")
        self.left: list[str] = []

    def leave(self, name: str) -> bytes:
        self.left.append(name)
        return self.inside.get()

    def enter(self, data: bytes, peer: PeerInfo) -> None:
        assert peer is PEER
        self.inside.set(data)


@pytest.fixture
def noted() -> Iterator[Noted]:
    noted = Noted()
    scope.carry(noted)
    yield noted
    scope.put_down()


def test_nothing_travels_without_a_layer_that_wants_it() -> None:
    assert scope.leaving("worker-0") == b""
    scope.entering(b"of a newer member", PEER)


def test_what_leaves_is_what_is_entered(noted: Noted) -> None:
    assert scope.leaving("worker-0") == b""
    scope.entering(b"here", PEER)
    assert scope.leaving("worker-1") == b"here"
    assert noted.left == ["worker-0", "worker-1"]


def test_there_is_one_scope_at_most(noted: Noted) -> None:
    with pytest.raises(ArgumentError, match="another scope"):
        scope.carry(noted)
