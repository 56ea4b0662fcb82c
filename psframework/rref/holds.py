"""References inside messages: the sender holds what they came from until the receiver has taken them over.

Both ends number them. The receiver remembers which numbers it has seen, so a message that was given up is
refused when it arrives after all, and is remembered only for as long as some lower number is missing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from psframework.rref.ids import HoldId, Numbers
from psframework.rref.messages import Action, Ask, Message, NotHeld, Send, Unhold

T = TypeVar("T")


class HoldState(Enum):
    """How far a reference is, as its sender knows."""

    TRAVELS = "travels"
    """The message is under way."""
    ANSWERED = "answered"
    """It was answered (a reply: it was sent), and the receiver will say that it has taken over."""
    DOUBTFUL = "doubtful"
    """Perhaps the message was lost: the receiver is asked."""
    RETURNED = "returned"
    """The message surely was not taken. Nothing is held, but the receiver must hear of the number."""


_QUIET = (HoldState.TRAVELS, HoldState.ANSWERED)


@dataclass(slots=True)
class Hold(Generic[T]):
    """One reference on its way.

    Args:
        id: its name.
        receiver: who will get it.
        what: what may not be let go meanwhile.
    """

    id: HoldId
    receiver: int
    what: T
    state: HoldState = HoldState.TRAVELS


class Outgoing(Generic[T]):
    """What this process holds for messages that it sent."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._last: dict[int, int] = {}
        self._holds: dict[int, dict[int, Hold[T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._holds.values()))

    def add(self, receiver: int, what: T) -> Hold[T]:
        """Begins to hold `what` for a message to `receiver`."""
        number = self._last[receiver] = self._last.get(receiver, 0) + 1
        hold = Hold(HoldId(self._incarnation, number), receiver, what)
        self._holds.setdefault(receiver, {})[number] = hold
        return hold

    def find(self, receiver: int, hold: HoldId) -> Hold[T] | None:
        """What is held under that name, if it is."""
        return self._holds.get(receiver, {}).get(hold.counter) if hold.sender == self._incarnation else None

    def pop(self, receiver: int, hold: HoldId) -> T | None:
        """The receiver has answered: returns what was held until now; None if nothing was."""
        found = self.find(receiver, hold)
        if found is None:
            return None
        holds = self._holds[receiver]
        del holds[hold.counter]
        if not holds:
            del self._holds[receiver]
        return None if found.state is HoldState.RETURNED else found.what

    def returned(self, hold: Hold[T]) -> tuple[T | None, list[Action]]:
        """The message surely was not taken: returns what was held, and the question that closes the gap."""
        if self.find(hold.receiver, hold.id) is not hold or hold.state is HoldState.RETURNED:
            return None, []
        hold.state = HoldState.RETURNED
        return hold.what, [Send(hold.receiver, Ask(hold.id))]

    def doubt(self, hold: Hold[T]) -> list[Action]:
        """Nobody knows whether the message was taken: asks."""
        if self.find(hold.receiver, hold.id) is not hold or hold.state not in _QUIET:
            return []
        hold.state = HoldState.DOUBTFUL
        return [Send(hold.receiver, Ask(hold.id))]

    def answered(self, hold: Hold[T]) -> None:
        """The message was answered; if it is a reply, it was sent."""
        if hold.state is HoldState.TRAVELS:
            hold.state = HoldState.ANSWERED

    def cut(self, receiver: int) -> list[Action]:
        """A session with the receiver has ended: what was answered, but not taken over, is in doubt."""
        holds = list(self._holds.get(receiver, {}).values())
        return [a for hold in holds if hold.state is HoldState.ANSWERED for a in self.doubt(hold)]

    def lost(self, receiver: int) -> list[Hold[T]]:
        """The receiver is dead: returns all that was held for it."""
        self._last.pop(receiver, None)
        holds = self._holds.pop(receiver, {}).values()
        return [hold for hold in holds if hold.state is not HoldState.RETURNED]

    def pending(self, to: int) -> list[Message]:
        """Questions that `to` has not answered."""
        holds = self._holds.get(to, {}).values()
        return [Ask(hold.id) for hold in holds if hold.state not in _QUIET]

    @property
    def receivers(self) -> list[int]:
        """Who has still to answer something."""
        return list(self._holds)


@dataclass(slots=True)
class _Sender:
    seen: Numbers = field(default_factory=Numbers)
    open: set[int] = field(default_factory=set)  # taken, but its fork is not registered yet
    telling: set[int] = field(default_factory=set)  # registered; the sender has not confirmed that it knows


class Incoming:
    """What others hold for messages that this process got."""

    def __init__(self) -> None:
        self._senders: defaultdict[int, _Sender] = defaultdict(_Sender)

    def __len__(self) -> int:
        return sum(len(sender.open) + len(sender.telling) for sender in self._senders.values())

    @property
    def tombstones(self) -> int:
        """Numbers remembered one by one."""
        return sum(len(sender.seen.beyond) for sender in self._senders.values())

    def __contains__(self, hold: HoldId) -> bool:
        sender = self._senders.get(hold.sender)
        return sender is not None and hold.counter in sender.seen

    def take(self, hold: HoldId) -> bool:
        """A reference arrives; False if it came before, or was given up."""
        sender = self._senders[hold.sender]
        if not sender.seen.add(hold.counter):
            return False
        sender.open.add(hold.counter)
        return True

    def done(self, hold: HoldId) -> list[Action]:
        """The reference is registered, or is not wanted: its sender shall let go."""
        sender = self._senders.get(hold.sender)
        if sender is None or hold.counter not in sender.open:
            return []
        sender.open.remove(hold.counter)
        sender.telling.add(hold.counter)
        return [Send(hold.sender, Unhold(hold))]

    def forget(self, hold: HoldId) -> None:
        """The sender knows already."""
        sender = self._senders.get(hold.sender)
        if sender is not None:
            sender.open.discard(hold.counter)
            sender.telling.discard(hold.counter)

    def ask(self, hold: HoldId) -> list[Action]:
        """The sender doubts. What did not arrive until now is refused from now on."""
        sender = self._senders[hold.sender]
        sender.seen.add(hold.counter)
        return [] if hold.counter in sender.open else [Send(hold.sender, NotHeld(hold))]

    def lost(self, sender: int) -> None:
        """The sender is dead: it holds nothing any more."""
        self._senders.pop(sender, None)

    def pending(self, to: int) -> list[Message]:
        """What `to` has not confirmed."""
        sender = self._senders.get(to)
        return [Unhold(HoldId(to, number)) for number in sorted(sender.telling)] if sender else []

    @property
    def senders(self) -> list[int]:
        """Who has still to confirm something."""
        return [incarnation for incarnation, sender in self._senders.items() if sender.telling]
