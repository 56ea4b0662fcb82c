"""A message with values on its way, and its passengers: values that both ends must keep account of.

An RRef in an argument is more than bytes. The sender holds it until the receiver has taken it over, and the
receiver takes it over before the function starts. Layers above register a `Passenger` for such a type;
`arguments` calls it for each value of the type, and whoever sends or serves the message tells the `Journey`
how it ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from psframework.errors import ArgumentError
from psframework.wire.device_bytes import Part

if TYPE_CHECKING:
    from psframework.rpc.call import PeerInfo


class Outcome(Enum):
    """How a message ended, as far as this end knows."""

    ANSWERED = "answered"
    """It arrived, and what it asked for ran or failed there."""
    REFUSED = "refused"
    """Surely nothing of it was taken over: it never left, or the receiver refused it unseen."""
    UNKNOWN = "unknown"
    """The peer was lost, or nobody waited: it may or may not have arrived."""


class Journey:
    """One message with values, at one of its ends.

    Args:
        peer: the other end; None where there is none (a value kept, or sent to many).
        outgoing: whether values leave here.
        is_reply: whether it is the answer to a call. Nobody tells how a reply ended unless it can't be sent;
            what is in it is in doubt when its session ends.

    Attributes:
        parts: buffers of the values that don't travel inside the message, in order. On the way out they are
            views of the caller's arrays, and arrays that are on a device: whoever sends them copies first, or
            sends before control returns.
        before_start: the receiver awaits all of these before the function starts, or before the future of a
            reply resolves. If one raises, the message is refused with its error.
        about: the function that the message is about, for messages to people; "" if there is none.
        luggage: values that travel with the passenger at hand: `depart` appends, `arrive` finds them here.
    """

    __slots__ = (
        "_callbacks",
        "_notes",
        "about",
        "before_start",
        "is_reply",
        "luggage",
        "outcome",
        "outgoing",
        "parts",
        "peer",
    )

    def __init__(
        self, peer: PeerInfo | None = None, *, outgoing: bool = True, is_reply: bool = False
    ) -> None:
        self.peer = peer
        self.outgoing = outgoing
        self.is_reply = is_reply
        self.parts: list[Part] = []
        self.before_start: list[Awaitable[None]] = []
        self.luggage: list[Any] = []
        self.about = ""
        self.outcome: Outcome | None = None
        self._callbacks: list[Callable[[Outcome], None]] = []
        self._notes: dict[str, Any] | None = None

    @property
    def notes(self) -> dict[str, Any]:
        """What passengers want to remember about this message, each under its own kind."""
        if self._notes is None:
            self._notes = {}
        return self._notes

    @property
    def has_passengers(self) -> bool:
        """Whether somebody wants to know how the message ends."""
        return bool(self._callbacks)

    def on_outcome(self, callback: Callable[[Outcome], None]) -> None:
        """Calls `callback(outcome)` once, when the message has ended; at once if it has ended already."""
        if self.outcome is not None:
            callback(self.outcome)
        else:
            self._callbacks.append(callback)

    def end(self, outcome: Outcome) -> None:
        """The message has ended. Only the first call counts.

        All callbacks run, also if one of them raises; the first error is raised afterwards.
        """
        if self.outcome is not None:
            return
        self.outcome = outcome
        if not self._callbacks:
            return
        callbacks, self._callbacks = self._callbacks, []
        error: Exception | None = None
        for callback in callbacks:
            try:
                callback(outcome)
            except Exception as failure:
                error = error or failure
        if error is not None:
            raise error


class Passenger(Protocol):
    """What a layer above knows about values of one type that both ends of a message must keep account of."""

    @property
    def handles(self) -> type:
        """The type; its subclasses are handled too."""

    def depart(self, value: Any, journey: Journey) -> bytes | None:
        """The value leaves with this message.

        Plain values to go along (a tensor's array) are appended to `journey.luggage`.

        Returns:
            What `arrive` will get; None if the value should travel as if nobody handled its type.
        """

    def arrive(self, data: bytes, journey: Journey) -> object:
        """What `depart` of another process made has arrived; `journey.luggage` is what went along.

        Raises:
            WireError: the data is not what `depart` makes.
        """

    def decline(self, data: bytes, journey: Journey) -> None:
        """A reply can't be read, and has this in it: what `depart` made, perhaps, or other bytes."""


_by_kind: dict[str, Passenger] = {}
_by_type: dict[type, tuple[str, Passenger]] = {}


def carry(kind: str, passenger: Passenger) -> None:
    """Registers a passenger, once per process. `kind` is its name on the wire."""
    if kind in _by_kind or passenger.handles in _by_type:
        name = passenger.handles.__name__
        raise ArgumentError(f"passengers of kind {kind!r}, or of type {name}, are carried already")
    _by_kind[kind] = passenger
    _by_type[passenger.handles] = (kind, passenger)


def put_down(kind: str) -> None:
    """Undoes `carry` (for tests)."""
    passenger = _by_kind.pop(kind, None)
    if passenger is not None:
        del _by_type[passenger.handles]


def passenger_for(kind: type) -> tuple[str, Passenger] | None:
    """The passenger that handles values of a type, with its name on the wire."""
    if _by_type:
        for base in kind.__mro__:
            found = _by_type.get(base)
            if found is not None:
                return found
    return None


def decline(data: bytes, journey: Journey) -> None:
    """Bytes of a reply that can't be read: whoever knows them as a passenger of its own lets that go."""
    for passenger in list(_by_kind.values()):
        passenger.decline(data, journey)


def passenger_named(kind: str) -> Passenger | None:
    """The passenger of a name on the wire."""
    return _by_kind.get(kind)
