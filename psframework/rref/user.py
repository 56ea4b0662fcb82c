"""References to values of other processes: the user's side of the fork protocol.

CREATING ──────── created ──────┐
   └─ failed ─▶ BREAKING ──┐    ▼
REGISTERING ── Registered ─┴▶ CONFIRMED ── dropped, no holds ─▶ DELETING ── Deleted ─▶ forgotten
   └─ Refused ─▶ DEAD ◀── owner lost, this process evicted: from any state
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from psframework.errors import PeerLost, PsfError
from psframework.rref.holds import Hold, Incoming
from psframework.rref.ids import ForkId, HoldId, Incarnations, RRefId
from psframework.rref.messages import (
    Action,
    Break,
    Confirmed,
    Delete,
    Failed,
    Message,
    Register,
    Send,
)


class ForkState(Enum):
    """How far a fork is."""

    CREATING = "creating"
    REGISTERING = "registering"
    BREAKING = "breaking"
    CONFIRMED = "confirmed"
    DELETING = "deleting"
    DEAD = "dead"


@dataclass(slots=True, eq=False)
class Fork:
    """One reference to a value that lives elsewhere.

    Args:
        id: its name at the owner.
        rref: the value.
        owner: incarnation of the owner.
        owner_name: for messages.
        state: how far it is.
        parent: the fork that it came from; None if it came from the owner, or was made here.
        hold: the message that it came in; None if it was made here.
        holds: messages that carry it away, and whose receivers have not taken over.
        dropped: whether nobody here needs it.
        error: what every use raises.
    """

    id: ForkId
    rref: RRefId
    owner: int
    owner_name: str
    state: ForkState
    parent: ForkId | None = None
    hold: HoldId | None = None
    holds: dict[tuple[int, HoldId], None] = field(default_factory=dict)
    dropped: bool = False
    error: PsfError | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the owner has not confirmed it yet."""
        return self.state in (ForkState.CREATING, ForkState.REGISTERING, ForkState.BREAKING)


@dataclass(slots=True)
class _Owner:
    last: int = 0
    forks: dict[ForkId, Fork] = field(default_factory=dict)


class UserState:
    """All forks of this process, by owner.

    Args:
        incarnation: of this process.
        fenced: lives that were declared over; shared with the account.
        incoming: what others hold for this process; shared with the account.
    """

    def __init__(self, incarnation: int, fenced: Incarnations, incoming: Incoming) -> None:
        self._incarnation = incarnation
        self._fenced = fenced
        self._incoming = incoming
        self._owners: defaultdict[int, _Owner] = defaultdict(_Owner)
        self._evicted: PsfError | None = None

    def __len__(self) -> int:
        return sum(len(owner.forks) for owner in self._owners.values())

    @property
    def forks(self) -> list[Fork]:
        """Those that are not forgotten yet."""
        return [fork for owner in self._owners.values() for fork in owner.forks.values()]

    def find(self, owner: int, fork: ForkId) -> Fork | None:
        """The fork of that name, if it is not forgotten yet."""
        found = self._owners.get(owner)
        return found.forks.get(fork) if found else None

    def create(self, rref: RRefId, owner: int, owner_name: str) -> Fork:
        """This process is about to ask `owner` for a new value. The fork is dead at once if the owner is."""
        fork = self._new(rref, owner, owner_name, ForkState.CREATING)
        self._stillborn(fork)
        return fork

    def created(self, fork: Fork) -> list[Action]:
        """The owner has made the value."""
        if fork.state is not ForkState.CREATING:
            return []
        return self._confirmed(fork)

    def broken(self, fork: Fork, error: PsfError) -> list[Action]:
        """The value was not made, or perhaps: every use raises `error`; elsewhere too, unless it was made."""
        if fork.state is not ForkState.CREATING:
            return []
        fork.error = error
        failed = Failed(fork.owner, fork.id, error)
        if fork.dropped and not fork.holds:
            return [failed, *self._delete(fork)]
        fork.state = ForkState.BREAKING
        return [failed, Send(fork.owner, Break(fork.id, fork.rref, error))]

    def arrive(
        self, rref: RRefId, owner: int, owner_name: str, parent: ForkId | None, hold: HoldId
    ) -> tuple[Fork, list[Action]]:
        """A reference has come in a message; it is of use once `Confirmed`."""
        fork = self._new(rref, owner, owner_name, ForkState.REGISTERING)
        fork.parent, fork.hold = parent, hold
        return fork, self._stillborn(fork) or [Send(owner, Register(fork.id, rref, parent, hold))]

    def drop(self, fork: Fork) -> list[Action]:
        """Nobody here needs the fork any more."""
        fork.dropped = True
        return self._perhaps_delete(fork)

    def hold(self, fork: Fork, hold: Hold[Fork | RRefId]) -> None:
        """A message carries the fork away."""
        fork.holds[hold.receiver, hold.id] = None

    def unhold(self, fork: Fork, receiver: int, hold: HoldId) -> list[Action]:
        """The receiver has taken over, or never will."""
        fork.holds.pop((receiver, hold), None)
        return self._perhaps_delete(fork)

    def registered(self, owner: int, id: ForkId) -> list[Action]:
        """The owner knows the fork."""
        fork = self.find(owner, id)
        if fork is None or fork.state not in (ForkState.REGISTERING, ForkState.BREAKING):
            return []
        return self._confirmed(fork)

    def refused(self, owner: int, id: ForkId) -> list[Action]:
        """The owner does not know the fork, and never will."""
        fork = self.find(owner, id)
        if fork is None or fork.state not in (ForkState.REGISTERING, ForkState.BREAKING):
            return []
        text = f"the value of RRef {fork.rref} on {fork.owner_name} is gone: whoever sent it here has died"
        return self._dead(fork, fork.error or PeerLost(text, peer=fork.owner_name, may_have_run=False))

    def deleted(self, owner: int, id: ForkId) -> list[Action]:
        """The owner has forgotten the fork."""
        fork = self.find(owner, id)
        if fork is not None and fork.state is ForkState.DELETING:
            self._forget(fork)
        return []

    def lost(self, owner: int, reason: str = "lease") -> list[Action]:
        """An owner is dead, and its values with it."""
        forks = self._owners.pop(owner, _Owner()).forks.values()
        return [action for fork in forks for action in self._dead(fork, owner_lost(fork, reason))]

    def evicted(self, error: PsfError) -> list[Action]:
        """This process is dead for all others: none of its forks exists any more."""
        forks, self._evicted = self.forks, error
        self._owners.clear()
        return [action for fork in forks for action in self._dead(fork, error)]

    def pending(self, to: int) -> list[Message]:
        """What `to` has not answered."""
        messages: list[Message] = []
        for fork in self._owners[to].forks.values() if to in self._owners else ():
            if fork.state is ForkState.REGISTERING:
                assert fork.hold is not None
                messages.append(Register(fork.id, fork.rref, fork.parent, fork.hold))
            elif fork.state is ForkState.BREAKING:
                assert fork.error is not None
                messages.append(Break(fork.id, fork.rref, fork.error))
            elif fork.state is ForkState.DELETING:
                messages.append(Delete(fork.id))
        return messages

    @property
    def owners(self) -> list[int]:
        """Owners at which this process has forks."""
        return [incarnation for incarnation, owner in self._owners.items() if owner.forks]

    def _new(self, rref: RRefId, owner: int, owner_name: str, state: ForkState) -> Fork:
        at = self._owners[owner]
        at.last += 1
        fork = Fork(ForkId(self._incarnation, at.last), rref, owner, owner_name, state)
        at.forks[fork.id] = fork
        return fork

    def _stillborn(self, fork: Fork) -> list[Action]:
        if self._evicted is not None:
            return self._dead(fork, self._evicted)
        return self._dead(fork, owner_lost(fork)) if fork.owner in self._fenced else []

    def _confirmed(self, fork: Fork) -> list[Action]:
        fork.state = ForkState.CONFIRMED
        actions = self._tell_parent(fork)
        if fork.error is None:
            actions.append(Confirmed(fork.owner, fork.id))
        return actions + self._perhaps_delete(fork)

    def _tell_parent(self, fork: Fork) -> list[Action]:
        """Whoever sent the fork may let go: it is registered, or never will be."""
        hold, fork.hold = fork.hold, None
        if hold is None:
            return []
        if hold.sender == fork.owner and fork.state is ForkState.CONFIRMED:  # it let go as it registered
            self._incoming.forget(hold)
            return []
        return self._incoming.done(hold)

    def _perhaps_delete(self, fork: Fork) -> list[Action]:
        wanted = not fork.dropped or fork.holds
        return [] if wanted or fork.state is not ForkState.CONFIRMED else self._delete(fork)

    def _delete(self, fork: Fork) -> list[Action]:
        fork.state = ForkState.DELETING
        return [Send(fork.owner, Delete(fork.id))]

    def _dead(self, fork: Fork, error: PsfError) -> list[Action]:
        fork.state, fork.error = ForkState.DEAD, error
        self._forget(fork)
        return [*self._tell_parent(fork), Failed(fork.owner, fork.id, error)]

    def _forget(self, fork: Fork) -> None:
        owner = self._owners.get(fork.owner)
        if owner is None:
            return
        owner.forks.pop(fork.id, None)
        if self._evicted is not None or fork.owner in self._fenced:  # no more will come
            del self._owners[fork.owner]


def owner_lost(fork: Fork, reason: str = "lease") -> PeerLost:
    """What every use of a fork raises when its owner is dead."""
    text = f"{fork.owner_name}, the owner of RRef {fork.rref}, was lost: {reason}"
    return PeerLost(text, peer=fork.owner_name, reason=reason)
