"""Values of this process that others refer to: the owner's side of the fork protocol.

A value lives while a fork, a handle here, or a hold (a reference in a message of this process that has not
been taken over) refers to it. A holder numbers its forks, so the owner knows which it has seen, and refuses a
registration that comes after the deletion. A reference whose parent has not been seen yet waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from psframework.errors import PsfError, WireError
from psframework.rref.holds import Hold, Incoming
from psframework.rref.ids import ForkId, HoldId, Incarnations, Numbers, RRefId
from psframework.rref.messages import (
    Action,
    Admitted,
    Break,
    Delete,
    Deleted,
    Ready,
    Refused,
    Register,
    Registered,
    Rejected,
    Release,
    Seen,
    Send,
)


@dataclass(slots=True, eq=False)
class Entry:
    """One value.

    Args:
        rref: its name.
        forks: who refers to it elsewhere.
        holds: (receiver, hold) of references under way from here.
        handles: references in this process.
        is_ready: whether `value` or `error` is there.
        value: the value.
        error: why there is none; every use raises it.
    """

    rref: RRefId
    forks: set[ForkId] = field(default_factory=set)
    holds: set[tuple[int, HoldId]] = field(default_factory=set)
    handles: int = 0
    is_ready: bool = False
    value: Any = None
    error: PsfError | None = None

    @property
    def is_needed(self) -> bool:
        """Whether anybody refers to it."""
        return bool(self.forks or self.holds or self.handles)


@dataclass(slots=True)
class _Holder:
    seen: Numbers = field(default_factory=Numbers)
    forks: dict[ForkId, RRefId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A reference that has come home to its owner, but earlier than what it came from."""

    hold: HoldId
    rref: RRefId


class OwnerState:
    """All values of this process.

    Args:
        fenced: lives that were declared over; shared with the account.
        incoming: what others hold for this process; shared with the account.
    """

    def __init__(self, fenced: Incarnations, incoming: Incoming) -> None:
        self._fenced = fenced
        self._incoming = incoming
        self._entries: dict[RRefId, Entry] = {}
        self._holders: defaultdict[int, _Holder] = defaultdict(_Holder)
        self._waiting: dict[ForkId, dict[ForkId | HoldId, Register | _Arrival]] = {}  # by parent, by child
        self._parents: dict[ForkId | HoldId, ForkId] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[Entry]:
        """All values that somebody refers to."""
        return list(self._entries.values())

    @property
    def tombstones(self) -> int:
        """Numbers of forks remembered one by one."""
        return sum(len(holder.seen.beyond) for holder in self._holders.values())

    @property
    def waiting(self) -> int:
        """References that wait for their parents."""
        return len(self._parents)

    def find(self, rref: RRefId) -> Entry | None:
        """The value of that name; None if it is gone, or its creation has not arrived."""
        return self._entries.get(rref)

    def has_seen(self, fork: ForkId) -> bool:
        """Whether the fork was registered, deleted or refused here, or its holder is dead."""
        holder = self._holders.get(fork.holder)
        return fork.holder in self._fenced or (holder is not None and fork.counter in holder.seen)

    # Values

    def adopt(self, rref: RRefId) -> Entry:
        """A value of this process gets a handle here, and is to be finished."""
        entry = self._entries[rref] = Entry(rref, handles=1)
        return entry

    def create(self, rref: RRefId, fork: ForkId) -> tuple[Entry | None, list[Action]]:
        """A user asks for a new value. None: it has given up already, or is dead.

        Raises:
            WireError: the name is taken, or another process's.
        """
        if self.has_seen(fork):
            return None, []
        if not self._may_name(rref, fork):
            raise WireError(f"fork {fork} can't create RRef {rref}: its name is taken, or another process's")
        self._see(fork)
        return self._new(rref, fork), self._children(fork)

    def finish(self, entry: Entry, value: Any = None, error: PsfError | None = None) -> list[Action]:
        """The value was made, or its making failed."""
        if entry.is_ready or self._entries.get(entry.rref) is not entry:
            return []
        entry.value, entry.error, entry.is_ready = value, error, True
        return [Ready(entry.rref)]

    # Handles and messages of this process

    def acquire(self, entry: Entry) -> None:
        """One more handle in this process."""
        entry.handles += 1

    def drop(self, rref: RRefId) -> list[Action]:
        """One handle less."""
        entry = self._entries.get(rref)
        if entry is None:
            return []
        entry.handles -= 1
        return self._perhaps_release(entry)

    def hold(self, entry: Entry, hold: Hold[Any]) -> None:
        """A message of this process carries a reference away."""
        entry.holds.add((hold.receiver, hold.id))

    def unhold(self, rref: RRefId, receiver: int, hold: HoldId) -> list[Action]:
        """The receiver has registered, or never will."""
        entry = self._entries.get(rref)
        if entry is None:
            return []
        entry.holds.discard((receiver, hold))
        return self._perhaps_release(entry)

    def arrive(self, rref: RRefId, parent: ForkId | None, hold: HoldId) -> list[Action]:
        """A reference has come home; `Admitted` or `Rejected` follows, now or when its parent is known."""
        entry = self._entries.get(rref)
        if entry is not None:
            entry.handles += 1
            return [*self._incoming.done(hold), Admitted(hold, rref)]
        if parent is not None and not self.has_seen(parent):
            self._wait(parent, hold, _Arrival(hold, rref))
            return []
        return [*self._incoming.done(hold), Rejected(hold)]

    def abandon(self, hold: HoldId) -> list[Action]:
        """Nobody waits any more for a reference that has come home and is neither admitted nor rejected."""
        self._forget_waiting(hold)
        return self._incoming.done(hold)

    # Messages of holders

    def register(self, message: Register) -> list[Action]:
        """A holder has got a reference from another."""
        fork, to = message.fork, message.fork.holder
        if self.has_seen(fork):
            return [self._answer(fork)]
        entry = self._entries.get(message.rref)
        if entry is None and message.parent is not None and not self.has_seen(message.parent):
            self._wait(message.parent, fork, message)
            return []
        self._see(fork)
        if entry is None:
            return [Send(to, Refused(fork)), *self._children(fork)]
        self._add(entry, fork)
        return [Send(to, Registered(fork)), *self._children(fork)]

    def break_(self, message: Break) -> list[Action]:
        """A creator says that it never got what it asked for. What was made nevertheless stays as it is."""
        fork, rref = message.fork, message.rref
        if self.has_seen(fork):
            return [self._answer(fork)]
        self._see(fork)
        if not self._may_name(rref, fork):
            return [Send(fork.holder, Refused(fork)), *self._children(fork)]
        entry = self._new(rref, fork)
        entry.error, entry.is_ready = message.error, True
        return [Send(fork.holder, Registered(fork)), Ready(rref), *self._children(fork)]

    def delete(self, message: Delete) -> list[Action]:
        """A holder needs a fork no more."""
        fork = message.fork
        answer = Send(fork.holder, Deleted(fork))
        self._forget_waiting(fork)
        if self._see(fork):
            return [answer, *self._children(fork)]
        holder = self._holders.get(fork.holder)
        rref = holder.forks.pop(fork, None) if holder else None
        if rref is None:
            return [answer]
        entry = self._entries[rref]
        entry.forks.remove(fork)
        return [answer, *self._perhaps_release(entry)]

    def lost(self, incarnation: int) -> list[Action]:
        """A holder is dead (and in `fenced`): its forks, and all that waits for them or for it, are gone."""
        actions: list[Action] = []
        for child in [c for c in self._parents if _whose(c) == incarnation]:
            self._forget_waiting(child)
        holder = self._holders.pop(incarnation, _Holder())
        for fork, rref in holder.forks.items():
            entry = self._entries[rref]
            entry.forks.remove(fork)
            actions += self._perhaps_release(entry)
        for parent in [p for p in self._waiting if p.holder == incarnation]:
            actions += self._children(parent)
        return actions

    def evicted(self) -> list[Action]:
        """This process is dead for all others: only its own handles count."""
        homecomings = [child for child in self._parents if isinstance(child, HoldId)]
        actions: list[Action] = [Rejected(hold) for hold in homecomings]
        self._holders.clear()
        self._waiting.clear()
        self._parents.clear()
        for entry in self.entries:
            entry.forks.clear()
            entry.holds.clear()
            actions += self._perhaps_release(entry)
        return actions

    # Parts

    def _may_name(self, rref: RRefId, fork: ForkId) -> bool:
        return rref.worker == fork.holder and rref not in self._entries

    def _new(self, rref: RRefId, fork: ForkId) -> Entry:
        entry = self._entries[rref] = Entry(rref)
        self._add(entry, fork)
        return entry

    def _see(self, fork: ForkId) -> bool:
        if fork.holder in self._fenced:
            return False
        return self._holders[fork.holder].seen.add(fork.counter)

    def _add(self, entry: Entry, fork: ForkId) -> None:
        entry.forks.add(fork)
        self._holders[fork.holder].forks[fork] = entry.rref

    def _answer(self, fork: ForkId) -> Action:
        held = fork in self._holders[fork.holder].forks
        return Send(fork.holder, Registered(fork) if held else Refused(fork))

    def _perhaps_release(self, entry: Entry) -> list[Action]:
        if entry.is_needed:
            return []
        del self._entries[entry.rref]
        return [Release(entry.rref)]

    def _wait(self, parent: ForkId, child: ForkId | HoldId, what: Register | _Arrival) -> None:
        self._forget_waiting(child)  # it may have been said before, even of another parent
        self._waiting.setdefault(parent, {})[child] = what
        self._parents[child] = parent

    def _forget_waiting(self, child: ForkId | HoldId) -> None:
        parent = self._parents.pop(child, None)
        if parent is not None:
            children = self._waiting[parent]
            del children[child]
            if not children:
                del self._waiting[parent]

    def _children(self, parent: ForkId) -> list[Action]:
        """A fork is known now (or dead): what waited for it goes on."""
        actions: list[Action] = [Seen(parent)]
        for child, what in list(self._waiting.get(parent, {}).items()):
            self._forget_waiting(child)
            if isinstance(what, Register):
                actions += self.register(what)
            else:
                actions += self.arrive(what.rref, parent, what.hold)
        return actions


def _whose(child: ForkId | HoldId) -> int:
    return child.holder if isinstance(child, ForkId) else child.sender
