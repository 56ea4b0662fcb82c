"""A scope travels with calls, and is there when their arguments are read."""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

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

    def current(self) -> object:
        return self.inside.get()

    def resume(self, found: Any) -> None:
        self.inside.set(found or b"")


@pytest.fixture
def noted() -> Iterator[Noted]:
    noted = Noted()
    scope.carry(noted)
    yield noted
    scope.put_down()


def test_nothing_travels_without_a_layer_that_wants_it() -> None:
    assert scope.leaving("worker-0") == b""
    scope.entering(b"of a newer member", PEER)
    assert scope.current() is None
    scope.resume(None)


def test_what_leaves_is_what_is_entered(noted: Noted) -> None:
    assert scope.leaving("worker-0") == b""
    scope.entering(b"here", PEER)
    assert scope.leaving("worker-1") == b"here"
    assert noted.left == ["worker-0", "worker-1"]


def test_what_is_current_is_resumed_elsewhere(noted: Noted) -> None:
    scope.entering(b"here", PEER)
    found = scope.current()
    scope.resume(None)
    assert scope.leaving("worker-0") == b""
    scope.resume(found)
    assert scope.leaving("worker-0") == b"here"


def test_there_is_one_scope_at_most(noted: Noted) -> None:
    with pytest.raises(ArgumentError, match="another scope"):
        scope.carry(noted)
