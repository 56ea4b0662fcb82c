"""Leases: who is alive, decided from renewals, open streams and the coordinator's own clock. No I/O.

The coordinator counts a lease from the arrival of a renewal, the holder from sending it, so the holder always
stops first. All times are seconds of one clock that counts suspension (CLOCK_BOOTTIME), given by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from psframework.errors import ArgumentError

MIN_LEASE, MAX_LEASE = 0.5, 3600.0  # seconds; below 3 s one long C call that keeps the GIL can cost it

SMALLEST_GAP = 0.3  # seconds; below, a tick is merely late


class Reason(StrEnum):
    """Why a member is lost; the values are those of `PeerLost.reason`, and "left"."""

    LEFT = "left"
    LEASE = "lease"
    CLOSED = "closed"
    REPLACED = "incarnation"
    STALLED = "stalled"


class Health(Enum):
    """What is known about the holder of a name that somebody else wants."""

    LIVE = "live"
    SILENT = "silent"
    GONE = "gone"


def check_lease(seconds: float) -> float:
    """Returns a lease's length in seconds, or raises ArgumentError outside of 0.5 s to 1 h."""
    if not MIN_LEASE <= seconds <= MAX_LEASE:
        raise ArgumentError(f"a lease of {seconds} s: use {MIN_LEASE} to {MAX_LEASE:g} s")
    return seconds


def renewal_interval(seconds: float) -> float:
    """Returns how often a lease of that length is renewed, in seconds."""
    return min(seconds / 4, 1.0)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Times of the coordinator, in seconds.

    Args:
        stall_limit: a loop that has not turned for so long makes its member `stalled`.
        closed_grace: a member whose stream closed and who did not renew for so long is fenced. Longer than
            the longest renewal interval (1 s), since a stream may also break under a live member.
    """

    stall_limit: float = 60.0
    closed_grace: float = 1.5


@dataclass(slots=True)
class _Lease:
    seconds: float
    hold_until: float  # not evicted before: after a start or a gap of the coordinator
    renewed_at: float
    tick: int
    tick_at: float  # when the tick last changed
    streams: set[int] = field(default_factory=set)
    closed_at: float | None = None  # when its last stream closed; None: open, or never opened
    stalled: bool = False

    def quiet_since(self) -> float | None:
        """When the last sign of life came from a member whose streams are closed; None if one is open."""
        return None if self.closed_at is None else max(self.closed_at, self.renewed_at)


class LeaseTable:
    """The leases of all members, by incarnation."""

    def __init__(self, now: float, options: LeaseOptions | None = None) -> None:
        self._options = options or LeaseOptions()
        self._leases: dict[int, _Lease] = {}
        self._observed = now

    def __contains__(self, incarnation: int) -> bool:
        return incarnation in self._leases

    def add(self, incarnation: int, seconds: float, now: float, *, hold: bool = False) -> None:
        """Starts a lease; `hold` says that it is one of before the coordinator's start."""
        self._leases[incarnation] = _Lease(seconds, now + seconds if hold else now, now, 0, now)

    def drop(self, incarnation: int) -> None:
        """Forgets a lease."""
        self._leases.pop(incarnation, None)

    def renew(self, incarnation: int, tick: int, now: float) -> float | None:
        """Prolongs a lease; returns its length, or None if there is no such lease."""
        lease = self._leases.get(incarnation)
        if lease is None:
            return None
        lease.renewed_at = now
        if tick != lease.tick:
            lease.tick, lease.tick_at = tick, now
        return lease.seconds

    def stream_opened(self, incarnation: int, stream: int) -> None:
        """The member opened its stream number `stream`."""
        lease = self._leases.get(incarnation)
        if lease is not None:
            lease.streams.add(stream)
            lease.closed_at = None

    def stream_closed(self, incarnation: int, stream: int, now: float) -> None:
        """A stream of the member ended, for whatever reason."""
        lease = self._leases.get(incarnation)
        if lease is not None:
            lease.streams.discard(stream)
            if not lease.streams:
                lease.closed_at = now

    def observe(self, now: float) -> None:
        """The coordinator's tick: after a gap nobody is evicted for one lease, since nobody could renew."""
        gap, self._observed = now - self._observed, now
        for lease in self._leases.values():
            if lease.closed_at is not None and gap > self._options.closed_grace / 3:
                lease.closed_at = now
            if gap > max(lease.seconds / 3, SMALLEST_GAP):
                lease.hold_until = now + lease.seconds
                lease.tick_at = min(now, lease.tick_at + gap)

    def due(self, now: float) -> Iterator[tuple[int, Reason]]:
        """Yields who must be fenced now, and why. Call `observe` first."""
        for incarnation, lease in self._leases.items():
            if now < lease.hold_until:
                continue
            quiet = lease.quiet_since()
            if quiet is not None and now - quiet >= self._options.closed_grace:
                yield incarnation, Reason.CLOSED
            elif now - lease.renewed_at >= lease.seconds:
                yield incarnation, Reason.LEASE

    def stall_changes(self, now: float) -> Iterator[tuple[int, bool]]:
        """Yields members whose loop stopped turning (True) or turns again (False), once for each change."""
        for incarnation, lease in self._leases.items():
            stalled = now - lease.tick_at >= self._options.stall_limit
            if stalled != lease.stalled:
                lease.stalled = stalled
                yield incarnation, stalled

    def told(self, incarnation: int, stalled: bool) -> None:
        """Corrects what the others know of a member: a change that `stall_changes` yielded was undone."""
        lease = self._leases.get(incarnation)
        if lease is not None:
            lease.stalled = stalled

    def health(self, incarnation: int, asked_at: float, now: float) -> Health:
        """Judges the holder of a name that was asked for at `asked_at`, by what it did since."""
        lease = self._leases.get(incarnation)
        if lease is None:
            return Health.GONE
        if lease.renewed_at > asked_at:
            return Health.LIVE
        quiet = lease.quiet_since()
        if quiet is None or now < lease.hold_until:
            return Health.SILENT
        # A live one would have renewed by now, even if only its stream broke.
        grace = min(1.25 * renewal_interval(lease.seconds), self._options.closed_grace)
        return Health.GONE if now - quiet >= grace else Health.SILENT


class HeldLease:
    """The holder's side: valid for one length, counted from sending the renewal that was answered."""

    def __init__(self, seconds: float, sent_at: float) -> None:
        self.seconds = seconds
        self._expires = sent_at + seconds

    def answered(self, sent_at: float, seconds: float) -> None:
        """The renewal sent at `sent_at` was answered."""
        self.seconds = seconds
        self._expires = max(self._expires, sent_at + seconds)

    def remaining(self, now: float) -> float:
        """Returns the seconds for which the lease still holds; 0 if it ran out."""
        return max(0.0, self._expires - now)
