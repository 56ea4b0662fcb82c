"""What a layer above has travel with every call, such as the distributed-autograd context that it is made in.

The caller's side asks `leaving` for a few bytes, which the request carries; the callee's side gives them to
`entering` before it reads the arguments, in the context in which the function will run.
"""

from __future__ import annotations

from typing import Protocol

from psframework.errors import ArgumentError
from psframework.rpc.call import PeerInfo


class Scope(Protocol):
    """Implemented by the layer above; one for the process."""

    def leave(self, name: str) -> bytes:
        """A call to that member is being made: what it carries; b"" outside of any scope."""

    def enter(self, data: bytes, peer: PeerInfo) -> None:
        """A call came with these bytes: sets context variables.

        Raises:
            PsfError: the call is refused; WireError if the bytes are not what `leave` makes.
        """

    def current(self) -> object:
        """What calls made here would be part of; None outside of any scope."""

    def resume(self, found: object) -> None:
        """From here on, in this context, code is part of what `current` answered elsewhere."""


_scope: Scope | None = None


def carry(scope: Scope) -> None:
    """Registers the scope of this process. ArgumentError if there is one."""
    global _scope
    if _scope is not None:
        raise ArgumentError("calls carry another scope already")
    _scope = scope


def put_down() -> None:
    """Undoes `carry`."""
    global _scope
    _scope = None


def leaving(name: str) -> bytes:
    """What a call to that member carries."""
    return b"" if _scope is None else _scope.leave(name)


def current() -> object:
    """What calls made here would be part of; None for nothing."""
    return None if _scope is None else _scope.current()


def resume(found: object) -> None:
    """From here on, in this context, code is part of what `current` answered elsewhere."""
    if _scope is not None:
        _scope.resume(found)


def entering(data: bytes, peer: PeerInfo) -> None:
    """A call came with a scope; without a layer that knows what it means, it is passed over."""
    if _scope is not None:
        _scope.enter(data, peer)
