"""Members and views: numbered sets of members, and the changes between them. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from psframework.membership.lease import Reason

HISTORY = 1024  # changes kept for watchers; one that is further behind gets the whole view


class MemberState(Enum):
    """What the coordinator knows about a member's health."""

    LIVE = "live"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Member:
    """One life of one process.

    Attributes:
        name: unique among live members.
        role: "parameter-server", "worker", "trainer", ...
        job: its job; empty for services.
        incarnation: unique for ever in this cluster.
        addresses: host:port, to be tried in order; empty if it can't listen.
        lease_s: length of its lease in seconds.
        state: its health.
        labels: facts for people.
    """

    name: str
    role: str
    job: str = ""
    incarnation: int = 0
    addresses: tuple[str, ...] = ()
    lease_s: float = 5.0
    state: MemberState = MemberState.LIVE
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that is gone, as it was, and why."""

    member: Member
    reason: Reason


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed from the previous view to view `number`: first apply `changed`, then `departed`."""

    number: int
    changed: tuple[Member, ...] = ()
    departed: tuple[Departure, ...] = ()
    joined: tuple[Member, ...] = ()  # those of `changed` that are new; known only to the coordinator


class View:
    """One immutable set of members.

    Attributes:
        number: grows with each change.
    """

    def __init__(self, number: int = 0, members: Iterable[Member] = ()) -> None:
        self.number = number
        ordered = sorted(members, key=lambda member: member.incarnation)
        self._members = {member.incarnation: member for member in ordered}

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """All members, in the order in which they joined."""
        return tuple(self._members.values())

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self._members.values()}

    def find(self, name: str) -> Member | None:
        """Returns the live member of that name, or None."""
        return self._by_name.get(name)

    def get(self, incarnation: int) -> Member | None:
        """Returns the live member of that incarnation, or None."""
        return self._members.get(incarnation)

    def select(self, role: str | None = None, job: str | None = None) -> tuple[Member, ...]:
        """Returns the members of a role, of a job, or of both, in the order in which they joined."""
        return tuple(m for m in self.members if role in (None, m.role) and job in (None, m.job))

    def apply(self, delta: Delta) -> View:
        """Returns the view after a change."""
        newest = next(reversed(self._members), 0)
        members = self._members.copy()
        for member in delta.changed:
            members[member.incarnation] = member
        for departure in delta.departed:
            members.pop(departure.member.incarnation, None)
        new = [member.incarnation for member in delta.changed if member.incarnation not in self._members]
        if new != sorted(new) or (new and new[0] < newest):
            return View(delta.number, members.values())
        view = View(delta.number)  # nearly always those who join are the newest, and need no sorting
        view._members = members
        return view

    def changes_to(self, newer: View) -> Delta:
        """Returns the change from this view to a whole newer one; for the missing the reason is the lease."""
        gone = (member for member in self.members if newer.get(member.incarnation) is None)
        changed = (member for member in newer.members if self.get(member.incarnation) != member)
        departed = tuple(Departure(member, Reason.LEASE) for member in gone)
        return Delta(newer.number, tuple(changed), departed)


class ViewLog:
    """The newest published view and the changes that led to it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._listeners: list[Callable[[Delta], None]] = []
        self._history: deque[tuple[int, Delta]] = deque(maxlen=HISTORY)  # (number before, change)

    def publish(self, delta: Delta) -> None:
        """Makes a change visible, and tells the listeners."""
        self._history.append((self.view.number, delta))
        self.view = self.view.apply(delta)
        for listener in self._listeners:
            listener(delta)

    def listen(self, listener: Callable[[Delta], None]) -> None:
        """Calls `listener` after each change."""
        self._listeners.append(listener)

    def since(self, number: int) -> Delta | None:
        """Returns everything after view `number` as one change; None if that is too long ago."""
        if number == self.view.number:
            return Delta(number)
        deltas = [delta for before, delta in self._history if before >= number]
        if not deltas or not any(before == number for before, _ in self._history):
            return None
        changed = {member.incarnation: member for delta in deltas for member in delta.changed}
        departed = tuple(departure for delta in deltas for departure in delta.departed)
        return Delta(self.view.number, tuple(changed.values()), departed)
