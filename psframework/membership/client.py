"""A process's membership: joined, renewed, watched, and left."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from psframework.errors import ArgumentError, Evicted, PeerLost, PsfError
from psframework.membership.follower import FollowerHooks, ViewFollower
from psframework.membership.heartbeat import Heartbeat
from psframework.membership.keys import KeyValue
from psframework.membership.lease import HeldLease, Reason, check_lease
from psframework.membership.line import Line
from psframework.membership.messages import member_from_message
from psframework.membership.names import check_name
from psframework.membership.signal import Signal
from psframework.membership.view import Member, MemberState, View
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.security.credentials import Security
from psframework.rpc.watchdog import LoopTick, watch_loop

log = logging.getLogger(__name__)
LEAVE_SECONDS = 2.0
HEAR_SECONDS = 0.5  # for the answer to a join that was cancelled
JOIN_GRACE = 0.5  # seconds by which the coordinator gives up earlier than we, so that its reason arrives
BARRIER_GRACE = 2.0
LostHook = Callable[[Member, Reason], None]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Who wants to join.

    Args:
        role: "parameter-server", "worker", "trainer", ...
        name: wanted name; None: the coordinator gives `role-N`, lowest free (`names.free_name`).
        job: its job; empty for services.
        advertise: host:port, to be tried by others in order; empty if it can't listen.
        lease_s: length of the lease in seconds; under 3 s only for tests.
        labels: facts for people; host and pid are added.
    """

    role: str
    name: str | None = None
    job: str = ""
    advertise: Sequence[str] = ()
    lease_s: float = 5.0
    labels: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ArgumentError for a name or a lease that can't be."""
        check_name(self.role, "role")
        if self.name is not None:
            check_name(self.name)
        if self.job:
            check_name(self.job, "job")
        check_lease(self.lease_s)


class Membership:
    """This process as a member of a cluster; an async context manager, made by `join`.

    Attributes:
        member: this member, with its name and incarnation; a new one after `rejoin`.
        view: the newest view that this process has seen.
        kv: the cluster's key-value store.
    """

    def __init__(
        self, addresses: Sequence[str], request: JoinRequest, security: Security, timeout: float
    ) -> None:
        self._line = Line(addresses, security)
        self._request = request
        self._timeout = timeout
        self.member = Member(request.name or "", request.role, request.job)
        self.view = View()
        self.kv = KeyValue(self._line, lambda: self.member.incarnation)
        self._changed = Signal()
        self._lost_hooks: list[LostHook] = []
        self._evicted_hooks: list[Callable[[Evicted], None]] = []
        self._evicted: Evicted | None = None
        self._left = False
        self._lease = HeldLease(request.lease_s, 0.0)
        self._heartbeat: Heartbeat | None = None
        self._watch: asyncio.Task[None] | None = None
        self._entries = itertools.count(1)  # into barriers
        self._stack = AsyncExitStack()
        self._tick: LoopTick | None = None

    @classmethod
    def join(
        cls,
        addresses: Sequence[str],
        request: JoinRequest,
        security: Security | None = None,
        timeout: float = 30.0,
    ) -> Membership:
        """Returns a membership to be entered with `async with`.

        Args:
            addresses: of coordinators, tried in order.
            request: who wants to join.
            security: certificates and token; None for plaintext.
            timeout: seconds to get in; a silent holder of the name is waited for so long.

        Raises (on entering):
            NameTaken: a live member has the name.
            DeadlineExceeded: no coordinator answered.
            PermissionDenied: wrong certificate or token.
        """
        return cls(addresses, request, security or Security.plaintext(), timeout)

    async def __aenter__(self) -> Self:
        self._request.check()
        try:
            await self._stack.enter_async_context(self._line)
            self._tick = await self._stack.enter_async_context(watch_loop())
            await self._enter(self._request.name or "", Deadline.after(self._timeout))
        except BaseException:
            # Cancelled or late, we may be a member by now: don't leave the name taken for a lease.
            await self.leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    @property
    def line(self) -> Line:
        """Calls to the coordinator's process, for services that run beside it."""
        return self._line

    @property
    def term(self) -> int:
        """The highest term of a coordinator that this process has seen."""
        return self._line.terms.highest

    @property
    def holds_lease(self) -> bool:
        """Whether the lease still runs by our own clock; if not, serve nothing until it is renewed."""
        return self._evicted is None and self._lease.remaining(boottime()) > 0

    def check(self) -> None:
        """Raises Evicted if this incarnation was fenced, or PeerLost if its lease ran out for now."""
        if self._evicted is not None:
            raise Evicted(str(self._evicted))
        if not self.holds_lease:
            raise PeerLost(
                f"{self.member.name}'s lease ran out: no coordinator renewed it "
                f"(tried {', '.join(self._line.addresses.all)})",
                peer="coordinator",
                reason="lease",
            )

    def members(self, role: str | None = None, job: str | None = None) -> tuple[Member, ...]:
        """Returns the members of a role, of a job, of both, or all, in the order in which they joined."""
        return self.view.select(role, job)

    def find(self, name: str) -> Member | None:
        """Returns the live member of that name, or None."""
        return self.view.find(name)

    def is_stalled(self, incarnation: int) -> bool:
        """Whether a member's loop does not turn, as far as is known here; it may come back."""
        member = self.view.get(incarnation)
        return member is not None and member.state is MemberState.STALLED

    async def wait_for(
        self, condition: Callable[[View], object], deadline: Deadline, what: str = "the members"
    ) -> View:
        """Waits until `condition(view)` is true; returns that view.

        Raises:
            DeadlineExceeded: naming `what`.
            Evicted: this member was fenced meanwhile.
        """

        def holds() -> bool:
            if self._evicted is not None:
                self.check()
            return bool(condition(self.view))

        await self._changed.until(holds, deadline, what)
        return self.view

    def on_lost(self, hook: LostHook) -> None:
        """Calls `hook(member, reason)` on the loop for each other member that left, was fenced or stalls.

        A stalled member keeps its incarnation and may come back; all others are gone for good.
        """
        self._lost_hooks.append(hook)

    def on_evicted(self, hook: Callable[[Evicted], None]) -> None:
        """Calls `hook(error)` on the loop when this member was fenced; `rejoin` brings it back."""
        self._evicted_hooks.append(hook)

    async def barrier(self, name: str, n: int, deadline: Deadline) -> tuple[str, ...]:
        """Waits until `n` members of this job entered the barrier of that name; survives a new coordinator.

        Returns:
            Their names, in the order of coming.

        Raises:
            RendezvousTimeout: names who came, and who of the job is missing.
            PeerLost: a member died while it waited there; names it.
            ArgumentError: the others wait for another number, or this process entered it a second time.
            DeadlineExceeded: no coordinator answered.
            Evicted: this member was fenced.
        """
        check_name(name, "barrier")
        if not 1 <= n < 2**32:
            raise ArgumentError(f"barrier {name!r}: {n} members: at least one must come")
        request = pb.EnterBarrierRequest(
            name=name, count=n, incarnation=self.member.incarnation, entry=next(self._entries)
        )

        def shrink() -> None:
            seconds = deadline.seconds()
            if seconds is not None:
                request.timeout_seconds = seconds

        # The coordinator knows who is missing, so it gets to answer first.
        late = Deadline(deadline.at + BARRIER_GRACE)
        response = await self._line.call(
            "EnterBarrier", request, pb.EnterBarrierResponse, late, patient=True, before=shrink
        )
        return tuple(response.names)

    async def rejoin(self, timeout: float | None = None) -> Member:
        """Joins again under the same name, as a new incarnation, after an eviction."""
        await self._stop()
        await self._enter(self.member.name, Deadline.after(self._timeout if timeout is None else timeout))
        return self.member

    async def leave(self, timeout: float = LEAVE_SECONDS) -> None:
        """Ends the membership; never raises for a coordinator that is gone. Idempotent.

        Args:
            timeout: seconds to tell the coordinator, if it is there.
        """
        if self._left:
            return
        self._left = True
        await _to_the_end(self._leave(timeout), timeout)

    async def _leave(self, timeout: float) -> None:
        try:
            await self._stop()
            if self._evicted is None and self.member.incarnation:
                request = pb.LeaveRequest(incarnation=self.member.incarnation)
                await self._line.call("Leave", request, pb.LeaveResponse, Deadline.after(timeout))
        except PsfError as error:
            log.info("left without telling the coordinator: %s", error)
        finally:
            await self._stack.aclose()

    async def _enter(self, name: str, deadline: Deadline) -> None:
        """Joins, starts to renew and to watch, and waits for the first view."""
        wanted = self._request
        request = pb.JoinRequest(
            name=name,
            role=wanted.role,
            job=wanted.job,
            addresses=wanted.advertise,
            lease_seconds=wanted.lease_s,
            labels={"host": socket.gethostname(), "pid": str(os.getpid()), **wanted.labels},
            nonce=secrets.token_bytes(16),
        )
        sent_at = boottime()

        def shrink() -> None:
            nonlocal sent_at
            sent_at = boottime()
            request.timeout_seconds = max(0.0, deadline.remaining() - JOIN_GRACE)

        async def join() -> None:
            response = await self._line.call(
                "Join", request, pb.JoinResponse, deadline, patient=True, before=shrink
            )
            self.member = member_from_message(response.member)

        # Cancelled, we may be a member by now: only the answer says which one is to leave again.
        await _to_the_end(join(), HEAR_SECONDS)
        self._evicted = None
        self._lease = HeldLease(self.member.lease_s, sent_at)
        self._start()
        known = self.member.incarnation
        await self.wait_for(lambda view: view.get(known) is not None, deadline, "the first view")

    def _start(self) -> None:
        loop, incarnation = asyncio.get_running_loop(), self.member.incarnation
        tick = self._tick
        assert tick is not None

        def evicted(error: Evicted) -> None:
            self._on_evicted(incarnation, error)

        heartbeat = Heartbeat(
            self._line.addresses,
            self._line.security,
            self._line.terms,
            incarnation=incarnation,
            lease=self._lease,
            tick=lambda: tick.count,
            on_evicted=lambda error: _post(loop, evicted, error),
        )
        heartbeat.start()
        # A closed stream without a renewal would mean that we are dead.
        hooks = FollowerHooks(self._on_view, self._on_lost, evicted, heartbeat.kick)
        follower = ViewFollower(self._line, incarnation, hooks, self.view)
        self._heartbeat = heartbeat
        self._watch = loop.create_task(follower.run(), name="psf-watch")

    async def _stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None

    def _on_view(self, view: View) -> None:
        self.view = view
        self._changed.notify()

    def _on_lost(self, member: Member, reason: Reason) -> None:
        for hook in self._lost_hooks:
            _guarded(hook, member, reason)

    def _on_evicted(self, incarnation: int, error: Evicted) -> None:
        if incarnation != self.member.incarnation or self._evicted is not None or self._left:
            return
        log.warning("%s: %s", self.member.name, error)
        self._evicted = error
        self._changed.notify()
        for hook in self._evicted_hooks:
            _guarded(hook, error)


async def _to_the_end(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Awaits `work`, which may go on for so long if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise


def _guarded(hook: Callable[..., None], *arguments: object) -> None:
    """One broken hook must not end the watching."""
    try:
        hook(*arguments)
    except Exception:
        log.exception("a membership hook failed")


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[Evicted], None], error: Evicted) -> None:
    try:
        loop.call_soon_threadsafe(call, error)
    except RuntimeError:
        pass  # the loop is closed: nobody is left to hear it
