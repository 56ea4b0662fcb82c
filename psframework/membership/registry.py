"""The members: joins, leaves and fences as pure decisions; who may have a name, who must go. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from psframework.errors import Evicted, NameTaken
from psframework.membership.lease import Health, LeaseOptions, LeaseTable, Reason, check_lease
from psframework.membership.names import check_name, free_name
from psframework.membership.records import (
    INCARNATION_KEY,
    MEMBER_PREFIX,
    VIEW_KEY,
    member_record,
    number_record,
)
from psframework.membership.store import Change, Write
from psframework.membership.view import Delta, Departure, Member, MemberState, View, ViewLog


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Who wants to join.

    Args:
        role: what it does.
        name: wanted name; empty: `role-N`, lowest free.
        job: its job; empty for services.
        addresses: host:port, to be tried in order.
        lease_s: length of the lease in seconds.
        labels: facts for people.
        nonce: random bytes, the same in each retry of one request.
    """

    role: str
    name: str = ""
    job: str = ""
    addresses: tuple[str, ...] = ()
    lease_s: float = 5.0
    labels: Mapping[str, str] = field(default_factory=dict)
    nonce: bytes = b""

    def check(self) -> None:
        """Raises ArgumentError for names, lengths or numbers that can't be."""
        check_name(self.role, "role")
        if self.name:
            check_name(self.name)
        if self.job:
            check_name(self.job, "job")
        check_lease(self.lease_s)


class Registry:
    """All members as decided, and as published in `log`.

    A decided change is visible in `log` only when its Change is published, which is when it is durable.
    """

    def __init__(self, now: float, options: LeaseOptions | None = None) -> None:
        self.leases = LeaseTable(now, options)
        self.log = ViewLog(View())
        self._members: dict[int, Member] = {}
        self._names: dict[str, int] = {}
        self._nonces: dict[int, bytes] = {}
        self._by_nonce: dict[bytes, int] = {}
        self._incarnation = 0
        self._number = 0

    def load(
        self, members: Iterable[tuple[Member, bytes]], *, incarnation: int, number: int, now: float
    ) -> None:
        """Takes over what was stored: (member, nonce) each, the newest incarnation and view number."""
        self._incarnation, self._number = incarnation, number
        for member, nonce in members:
            self._add(member, nonce, now, hold=True)
        self.log = ViewLog(View(number, self._members.values()))

    def join(self, spec: JoinSpec, asked_at: float, now: float) -> tuple[Member, Change | None] | None:
        """Decides a join that was asked for at `asked_at`.

        Returns:
            The member and what to store (None: a repeated request, already decided); or None: the holder of
            the name is silent, so ask again later.

        Raises:
            NameTaken: the holder lives.
            ArgumentError: a name or a lease that can't be.
        """
        spec.check()
        earlier = self._members.get(self._by_nonce.get(spec.nonce, 0)) if spec.nonce else None
        if earlier is not None:
            # The holder counts its lease from sending this repetition, so it must not end before that.
            self.leases.renew(earlier.incarnation, 0, now)
            return earlier, None
        departed: tuple[Departure, ...] = ()
        holder = self._members.get(self._names.get(spec.name, 0))
        if holder is not None:
            self.leases.observe(now)  # this may be the first that happens after a gap
            health = self.leases.health(holder.incarnation, asked_at, now)
            if health is Health.LIVE:
                raise NameTaken(_taken(holder))
            if health is Health.SILENT:
                return None
            departed = (Departure(holder, Reason.REPLACED),)
        return self._admit(spec, departed, now)

    def renew(self, incarnation: int, tick: int, now: float) -> float:
        """Prolongs a lease and returns its length in seconds; Evicted if the incarnation is no member."""
        seconds = self.leases.renew(incarnation, tick, now)
        if seconds is None:
            raise Evicted(
                f"incarnation {incarnation} is no member any more: its lease ran out or it was replaced; "
                "join again under a new incarnation"
            )
        return seconds

    def check_live(self, incarnation: int) -> Member:
        """Returns the member of that incarnation, or raises Evicted."""
        member = self._members.get(incarnation)
        if member is None:
            raise Evicted(f"incarnation {incarnation} is no member of this cluster; join (again) first")
        return member

    def leave(self, incarnation: int, now: float) -> Change | None:
        """Ends a membership; None if there is none."""
        member = self._members.get(incarnation)
        return None if member is None else self._change((), (Departure(member, Reason.LEFT),), now)

    def tick(self, now: float) -> Change | None:
        """Fences whoever is due and notes whose loop stands still; None if nothing changed."""
        self.leases.observe(now)
        due = list(self.leases.due(now))
        departed = tuple(Departure(self._members[incarnation], reason) for incarnation, reason in due)
        gone = {incarnation for incarnation, _ in due}
        changed = []
        for incarnation, stalled in self.leases.stall_changes(now):
            if incarnation not in gone:
                state = MemberState.STALLED if stalled else MemberState.LIVE
                changed.append(replace(self._members[incarnation], state=state))
        return self._change(tuple(changed), departed, now) if changed or departed else None

    def _admit(self, spec: JoinSpec, departed: tuple[Departure, ...], now: float) -> tuple[Member, Change]:
        self._incarnation += 1
        member = Member(
            spec.name or free_name(spec.role, self._names),
            spec.role,
            spec.job,
            self._incarnation,
            spec.addresses,
            spec.lease_s,
            labels=dict(spec.labels),
        )
        change = self._change((), departed, now, joined=(member, spec.nonce))
        return member, change

    def _change(
        self,
        changed: tuple[Member, ...],
        departed: tuple[Departure, ...],
        now: float,
        joined: tuple[Member, bytes] | None = None,
    ) -> Change:
        """Applies a change to the decided state and returns it with its writes."""
        self._number += 1
        writes = [number_record(VIEW_KEY, self._number)]
        nonces = {gone.member.incarnation: self._remove(gone.member) for gone in departed}
        writes += [Write(f"{MEMBER_PREFIX}{gone.member.incarnation}", None) for gone in departed]
        before = [self._members[member.incarnation] for member in changed]
        self._members.update((member.incarnation, member) for member in changed)
        if joined is not None:
            self._add(*joined, now)
            writes += [number_record(INCARNATION_KEY, self._incarnation), member_record(*joined)]
            changed = (*changed, joined[0])
        delta = Delta(self._number, changed, departed, joined[:1] if joined else ())

        def undo() -> None:
            if joined is not None:
                self._remove(joined[0])
            self._members.update((member.incarnation, member) for member in before)
            for member in before:
                self.leases.told(member.incarnation, member.state is MemberState.STALLED)
            for gone in departed:
                self._add(gone.member, nonces[gone.member.incarnation], now)

        return Change(tuple(writes), lambda: self.log.publish(delta), undo)

    def _add(self, member: Member, nonce: bytes, now: float, *, hold: bool = False) -> None:
        self._members[member.incarnation] = member
        self._names[member.name] = member.incarnation
        if nonce:
            self._nonces[member.incarnation] = nonce
            self._by_nonce[nonce] = member.incarnation
        self.leases.add(member.incarnation, member.lease_s, now, hold=hold)

    def _remove(self, member: Member) -> bytes:
        """Forgets a member; returns its nonce."""
        del self._members[member.incarnation]
        del self._names[member.name]
        self.leases.drop(member.incarnation)
        nonce = self._nonces.pop(member.incarnation, b"")
        self._by_nonce.pop(nonce, None)
        return nonce


def _taken(holder: Member) -> str:
    where = ", ".join(holder.addresses) or holder.labels.get("host", "no address")
    return (
        f"the name {holder.name!r} belongs to a live member (role {holder.role}, incarnation "
        f"{holder.incarnation}, {where}); choose another name, or stop that process first"
    )
