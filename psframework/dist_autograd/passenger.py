"""Tensors inside messages, and the context that calls carry: how a graph goes on in another process."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, Protocol

from psframework import backend
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.dist_autograd.pairs import Sent
from psframework.errors import WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.functions import scope
from psframework.rpc.values import journey as journeys
from psframework.rpc.values.journey import Journey, Outcome

KIND = "gradient"
_TENSOR: Final = struct.Struct("<QQQQQI")  # context, message, receiver (0: unknown), index
_SCOPE: Final = struct.Struct("<QQQ")  # context, receiver (0: unknown); then the creator's name

_current: ContextVar[tuple[Home, Context] | None] = ContextVar("psframework_dist_autograd", default=None)


class Home(Protocol):
    """One connection of this process."""

    @property
    def incarnation(self) -> int: ...
    @property
    def contexts(self) -> Contexts: ...
    def incarnation_of(self, name: str) -> int: ...


def enter(home: Home, context: Context) -> Any:
    """From here on code belongs to a distributed-autograd context; returns what `leave` takes."""
    return _current.set((home, context))


def leave(token: Any) -> None:
    """Undoes `enter`, also from another task than the one that entered: that one's copy is beyond reach."""
    try:
        _current.reset(token)
    except ValueError:
        _current.set(None)


@contextmanager
def outside() -> Iterator[None]:
    """Calls in the block belong to no context, since they outlive the one that is open."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Context | None:
    """The context that the code at hand belongs to."""
    found = _current.get()
    return None if found is None else found[1]


class TensorPassenger:
    """The passenger and the scope of all connections of this process."""

    handles: type = Tensor

    def __init__(self) -> None:
        self._homes: weakref.WeakSet[Home] = weakref.WeakSet()
        self._counter = count(1)

    def add(self, home: Home) -> None:
        """One more connection."""
        if not self._homes:
            journeys.carry(KIND, self)
            scope.carry(self)
        self._homes.add(home)

    def remove(self, home: Home) -> None:
        """A connection has ended."""
        self._homes.discard(home)
        if not self._homes:
            journeys.put_down(KIND)
            scope.put_down()

    # As the scope of calls

    def leave(self, name: str) -> bytes:
        """A call is made: it is part of the context in which that happens, unless under `no_grad`."""
        found = _current.get()
        if found is None or not is_grad_enabled():
            return b""
        home, context = found
        context.check()
        context.peers[name] = None
        creator, counter = context.id
        return _SCOPE.pack(creator, counter, home.incarnation_of(name)) + context.creator.encode()

    def enter(self, data: bytes, peer: PeerInfo) -> None:
        """A call came from inside a context."""
        if len(data) < _SCOPE.size:
            raise WireError("a scope that can't be read")
        creator, counter, receiver = _SCOPE.unpack_from(data)
        home = self._home(receiver)
        name = data[_SCOPE.size :].decode(errors="replace")
        context = home.contexts.enter(ContextId(creator, counter), name)
        context.callers.add(peer.incarnation)
        enter(home, context)

    def current(self) -> object:
        """The context that the code at hand belongs to, with its connection."""
        return _current.get()

    def resume(self, found: Any) -> None:
        """From here on code belongs to what `current` answered."""
        _current.set(found)

    # As the passenger of tensors

    def depart(self, value: Any, journey: Journey) -> bytes | None:
        """A tensor leaves: what its gradient is where it arrives comes back, if it is in a context."""
        found = _current.get()
        tensor: Tensor = value
        if found is None or not tensor._requires_grad or not is_grad_enabled():
            return None
        home, context = found
        sent = journey.notes.get(KIND)
        if sent is None:
            context.check()
            sent = journey.notes[KIND] = self._sent(home, context, journey)
        index = sent.add(tensor)
        journey.luggage.append(tensor._data)
        receiver = journey.peer.incarnation if journey.peer is not None else 0
        return _TENSOR.pack(*context.id, *sent.id, receiver, index)

    def arrive(self, data: bytes, journey: Journey) -> Tensor:
        """A tensor has come: operations on it are recorded, and gradients go back."""
        if len(data) != _TENSOR.size or len(journey.luggage) != 1 or not backend.is_array(journey.luggage[0]):
            raise WireError("a tensor that can't be read")
        creator, counter, sender, number, receiver, index = _TENSOR.unpack(data)
        peer = journey.peer
        if peer is None or sender != peer.incarnation:
            raise WireError(
                "a tensor in a message of another member than the one that keeps its graph: "
                "inside a context, call through the connection that it was opened on"
            )
        context = self._context(ContextId(creator, counter), receiver)
        message = context.arriving(TensorsId(sender, number), (peer.name, sender), journey.about)
        if not message.orders:

            def ended(outcome: Outcome) -> None:
                if outcome is Outcome.REFUSED:  # something else in it can't be read
                    context.received.pop(message.id, None)

            journey.on_outcome(ended)
        return message.take(index, journey.luggage[0])

    def decline(self, data: bytes, journey: Journey) -> None:
        """A reply can't be read: its graph stays until the context ends."""

    def _sent(self, home: Home, context: Context, journey: Journey) -> Sent:
        id = TensorsId(home.incarnation, next(self._counter))
        peer = journey.peer.name if journey.peer is not None else "a member"
        sent = context.sent[id] = Sent(id, peer, journey.about)
        sent.receiver = journey.peer.incarnation if journey.peer is not None else 0

        def ended(outcome: Outcome) -> None:
            if outcome is Outcome.REFUSED:
                context.sent.pop(id, None)

        journey.on_outcome(ended)
        return sent

    def _context(self, id: ContextId, receiver: int) -> Context:
        """The context of a tensor: that of the call whose arguments it is among, or of a reply to one."""
        found = _current.get()
        if found is not None and found[1].id == id and receiver in (0, found[0].incarnation):
            found[1].check()
            return found[1]
        return self._home(receiver).contexts.find(id)

    def _home(self, receiver: int) -> Home:
        homes = [home for home in self._homes if receiver in (0, home.incarnation)]
        if not homes:
            raise WireError(f"a call for incarnation {receiver}, which is not this process")
        return homes[0]


PASSENGER = TensorPassenger()
