"""Barriers: who came, who is missing, and who died waiting. No I/O.

Who waits is kept in memory only: after a restart of the coordinator the clients enter again. Who was let
through is stored before anybody hears it, so one that did not hear it is let through when it asks again.
An entry whose call broke stays, detached, to name its member should it be dead; it doesn't count until the
member enters again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from psframework.errors import ArgumentError, Evicted, PeerLost, PsfError, RendezvousTimeout
from psframework.membership.lease import Reason
from psframework.membership.names import check_name
from psframework.membership.store import Change, Write
from psframework.membership.view import Member, MemberState
from psframework.proto.v1 import coordinator_pb2 as pb

BARRIER_PREFIX = "barrier/"
REMEMBERED = 600.0  # seconds for which somebody who was let through may ask again
Key = tuple[str, str]  # (job, name)


@dataclass(frozen=True, slots=True)
class Entry:
    """One member's entry.

    Args:
        member: who.
        number: its number of the entry, the same in each retry, growing.
        deadline: until when it waits; infinity for no end.
    """

    member: Member
    number: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one entry ended: with the names of all who came, or with an error."""

    incarnation: int
    number: int
    names: tuple[str, ...] = ()
    error: PsfError | None = None


@dataclass(slots=True)
class _Barrier:
    count: int
    entries: dict[int, Entry] = field(default_factory=dict)  # by incarnation, in the order of coming
    detached: set[int] = field(default_factory=set)

    def present(self) -> list[Entry]:
        return [entry for incarnation, entry in self.entries.items() if incarnation not in self.detached]

    def drop(self, incarnation: int) -> None:
        self.entries.pop(incarnation, None)
        self.detached.discard(incarnation)


@dataclass(slots=True)
class _Released:
    names: tuple[str, ...]
    numbers: dict[int, int]  # incarnation -> number of the entry
    until: float


class BarrierTable:
    """All barriers that somebody waits in, and those that were lately completed."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Barrier] = {}
        self._released: dict[Key, _Released] = {}

    def load(self, items: Iterable[tuple[str, bytes]], now: float) -> None:
        """Takes over what was stored under `BARRIER_PREFIX`."""
        for stored_key, value in items:
            job, _, name = stored_key.removeprefix(BARRIER_PREFIX).partition("/")
            record = pb.BarrierRecord.FromString(value)
            numbers = dict(record.released)
            self._released[job, name] = _Released(tuple(record.names), numbers, now + REMEMBERED)

    def enter(self, name: str, count: int, entry: Entry, now: float) -> tuple[list[Outcome], Change | None]:
        """A member enters, or asks again.

        Returns:
            The entries that end by this, and what must be stored before they are told.

        Raises:
            ArgumentError: a name or count that can't be, or another count than those who wait.
        """
        check_name(name, "barrier")
        key, incarnation = (entry.member.job, name), entry.member.incarnation
        released = self._released.get(key)
        if released is not None and released.numbers.get(incarnation) == entry.number:
            return [Outcome(incarnation, entry.number, released.names)], None
        barrier = self._barrier(key, count)
        outcomes = []
        earlier = barrier.entries.get(incarnation)
        if earlier is not None and earlier.number != entry.number:
            error = ArgumentError(f"barrier {name!r}: {entry.member.name} entered it again while it waited")
            outcomes.append(Outcome(incarnation, earlier.number, error=error))
        barrier.entries[incarnation] = entry
        barrier.detached.discard(incarnation)
        if len(barrier.present()) < count:
            return outcomes, None
        return outcomes + self._complete(key, barrier), self._remember(key, barrier, now)

    def detach(self, incarnation: int, number: int) -> None:
        """The call of that entry broke, or was cancelled."""
        for barrier in self._waiting.values():
            entry = barrier.entries.get(incarnation)
            if entry is not None and entry.number == number:
                barrier.detached.add(incarnation)

    def gone(self, member: Member, reason: Reason) -> list[Outcome]:
        """A member departed: whoever waits with it fails. One that left without waiting harms none."""
        outcomes: list[Outcome] = []
        for (job, name), barrier in list(self._waiting.items()):
            if member.incarnation not in barrier.entries:
                continue
            harmless = reason is Reason.LEFT and member.incarnation in barrier.detached
            number = barrier.entries[member.incarnation].number
            error = Evicted(f"barrier {name!r}: {member.name} departed ({reason})")
            outcomes.append(Outcome(member.incarnation, number, error=error))
            barrier.drop(member.incarnation)
            if not harmless:
                text = f"barrier {name!r}: {member.name} was lost ({reason}) while it waited there"
                outcomes += _fail(barrier, member.name, reason, text)
            self._tidy((job, name))
        for released in self._released.values():
            released.numbers.pop(member.incarnation, None)
        return outcomes

    def tick(self, live: Iterable[Member], now: float) -> list[Outcome]:
        """Ends the entries whose deadline has passed, and barriers that wait for a stalled member."""
        outcomes: list[Outcome] = []
        members = list(live) if self._waiting else []
        for key, barrier in list(self._waiting.items()):
            absent = [m for m in members if m.job == key[0] and m.incarnation not in barrier.entries]
            outcomes += _stalled(key[1], barrier, absent)
            outcomes += _timeouts(key, barrier, absent, now)
            self._tidy(key)
        return outcomes

    def forget(self, now: float) -> Change | None:
        """Drops completions that are long ago; what to store, or None."""
        old = [key for key, released in self._released.items() if released.until <= now]
        for key in old:
            del self._released[key]
        return Change(tuple(Write(_stored_key(key), None) for key in old)) if old else None

    def _barrier(self, key: Key, count: int) -> _Barrier:
        if count < 1:
            raise ArgumentError(f"barrier {key[1]!r}: count {count}: at least one must come")
        barrier = self._waiting.get(key)
        if barrier is None or (barrier.count != count and not barrier.present()):
            barrier = self._waiting[key] = _Barrier(count)
        elif barrier.count != count:
            names = ", ".join(entry.member.name for entry in barrier.present())
            raise ArgumentError(
                f"barrier {key[1]!r}: you wait for {count} members, but {names} for {barrier.count}"
            )
        return barrier

    def _complete(self, key: Key, barrier: _Barrier) -> list[Outcome]:
        del self._waiting[key]
        present = barrier.present()
        names = tuple(entry.member.name for entry in present)
        return [Outcome(entry.member.incarnation, entry.number, names) for entry in present]

    def _remember(self, key: Key, barrier: _Barrier, now: float) -> Change:
        present = barrier.present()
        numbers = {entry.member.incarnation: entry.number for entry in present}
        earlier = self._released.get(key)
        names = tuple(entry.member.name for entry in present)
        merged = {**(earlier.numbers if earlier else {}), **numbers}
        self._released[key] = _Released(names, merged, now + REMEMBERED)
        record = pb.BarrierRecord(names=names, released=merged)
        return Change((Write(_stored_key(key), record.SerializeToString()),))

    def _tidy(self, key: Key) -> None:
        barrier = self._waiting.get(key)
        if barrier is not None and not barrier.entries:
            del self._waiting[key]


def _stored_key(key: Key) -> str:
    return f"{BARRIER_PREFIX}{key[0]}/{key[1]}"


def _fail(barrier: _Barrier, peer: str, reason: Reason, text: str) -> Iterator[Outcome]:
    """Ends every entry with PeerLost."""
    for entry in barrier.entries.values():
        error = PeerLost(text, peer=peer, reason=reason.value, may_have_run=True)
        yield Outcome(entry.member.incarnation, entry.number, error=error)
    barrier.entries.clear()
    barrier.detached.clear()


def _stalled(name: str, barrier: _Barrier, absent: list[Member]) -> Iterator[Outcome]:
    """Fails a barrier that can only be completed by a member whose loop stands still."""
    stalled = [member for member in absent if member.state is MemberState.STALLED]
    if stalled and barrier.entries and len(barrier.entries) + len(absent) - len(stalled) < barrier.count:
        who = stalled[0].name
        text = f"barrier {name!r}: waits for {who}, whose event loop has not turned for long (stalled)"
        yield from _fail(barrier, who, Reason.STALLED, text)


def _timeouts(key: Key, barrier: _Barrier, absent: list[Member], now: float) -> Iterator[Outcome]:
    late = [entry for entry in barrier.entries.values() if entry.deadline <= now]
    if not late:
        return
    came = ", ".join(entry.member.name for entry in barrier.present())
    missing = tuple(member.name for member in absent)
    who = f"missing: {', '.join(missing)}" if missing else "nobody else is a member"
    job = f"of job {key[0]!r}" if key[0] else "of the services"
    number = f"{len(barrier.present())} of {barrier.count}"
    text = f"barrier {key[1]!r}: {number} came in time ({came}); {job}, {who}"
    for entry in late:
        barrier.drop(entry.member.incarnation)
        error = RendezvousTimeout(text, missing=missing)
        yield Outcome(entry.member.incarnation, entry.number, error=error)
