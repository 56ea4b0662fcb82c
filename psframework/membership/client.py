"""A process's membership: joined, renewed, watched, and left."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from psframework.errors import Evicted, PeerLost, PsfError, StaleTerm
from psframework.membership.heartbeat import Heartbeat
from psframework.membership.lease import HeldLease, Reason
from psframework.membership.line import Line
from psframework.membership.messages import delta_from_message, member_from_message
from psframework.membership.signal import Signal
from psframework.membership.view import Delta, Member, MemberState, View
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.security import Security

log = logging.getLogger(__name__)
LEAVE_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds between attempts to watch
LostHook = Callable[[Member, Reason], None]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Who wants to join.

    Args:
        role: "parameter-server", "worker", "trainer", ...
        name: wanted name; None: the coordinator gives `role-N`.
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


class Membership:
    """This process as a member of a cluster; an async context manager, made by `join`.

    Attributes:
        member: this member, with its name and incarnation; a new one after `rejoin`.
        view: the newest view that this process has seen.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        request: JoinRequest,
        security: Security,
        timeout: float,
        tick: Callable[[], int] | None,
    ) -> None:
        self._line = Line(addresses, security)
        self._request = request
        self._timeout = timeout
        self._tick = tick
        self.member = Member(request.name or "", request.role, request.job)
        self.view = View()
        self._changed = Signal()
        self._lost_hooks: list[LostHook] = []
        self._evicted_hooks: list[Callable[[Evicted], None]] = []
        self._evicted: Evicted | None = None
        self._left = False
        self._lease = HeldLease(request.lease_s, 0.0)
        self._heartbeat: Heartbeat | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ticks: asyncio.Task[None] | None = None
        self._turns = 0

    @classmethod
    def join(
        cls,
        addresses: Sequence[str],
        request: JoinRequest,
        security: Security | None = None,
        timeout: float = 30.0,
        *,
        tick: Callable[[], int] | None = None,
    ) -> Membership:
        """Returns a membership to be entered with `async with`.

        Args:
            addresses: of coordinators, tried in order.
            request: who wants to join.
            security: certificates and token; None for plaintext.
            timeout: seconds to get in; a silent holder of the name is waited for so long.
            tick: how often the loop has turned; None counts it here.

        Raises (on entering):
            NameTaken: a live member has the name.
            DeadlineExceeded: no coordinator answered.
            PermissionDenied: wrong certificate or token.
        """
        return cls(addresses, request, security or Security.plaintext(), timeout, tick)

    async def __aenter__(self) -> Membership:
        try:
            if self._tick is None:
                self._ticks = asyncio.get_running_loop().create_task(self._count_turns(), name="psf-tick")
            await self._enter(self._request.name or "", Deadline.after(self._timeout))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

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

    async def wait_for(
        self, condition: Callable[[View], bool], deadline: Deadline, what: str = "the members"
    ) -> View:
        """Waits until `condition(view)` holds; returns that view.

        Raises:
            DeadlineExceeded: naming `what`.
            Evicted: this member was fenced meanwhile.
        """

        def holds() -> bool:
            if self._evicted is not None:
                self.check()
            return condition(self.view)

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

    async def rejoin(self, timeout: float | None = None) -> Member:
        """Joins again under the same name, as a new incarnation, after an eviction."""
        await self._stop()
        await self._enter(self.member.name, Deadline.after(self._timeout if timeout is None else timeout))
        return self.member

    async def leave(self) -> None:
        """Ends the membership; never raises for a coordinator that is gone. Idempotent."""
        if self._left:
            return
        self._left = True
        try:
            await self._stop()
            if self._evicted is None and self.member.incarnation:
                request = pb.LeaveRequest(incarnation=self.member.incarnation)
                await self._line.call("Leave", request, pb.LeaveResponse, Deadline.after(LEAVE_SECONDS))
        except PsfError as error:
            log.info("left without telling the coordinator: %s", error)
        finally:
            await self._close()

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
            timeout_seconds=deadline.remaining(),
        )
        sent_at = boottime()
        response = await self._line.call("Join", request, pb.JoinResponse, deadline, patient=True)
        self.member = member_from_message(response.member)
        self._evicted = None
        self._lease = HeldLease(self.member.lease_s, sent_at)
        self._start(asyncio.get_running_loop())
        known = self.member.incarnation
        await self.wait_for(lambda view: view.get(known) is not None, deadline, "the first view")

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        incarnation = self.member.incarnation
        self._heartbeat = Heartbeat(
            self._line.addresses,
            self._line.security,
            self._line.terms,
            incarnation=incarnation,
            lease=self._lease,
            tick=self._tick or (lambda: self._turns),
            on_evicted=lambda error: _post(loop, self._on_evicted, incarnation, error),
        )
        self._heartbeat.start()
        self._watch = loop.create_task(self._follow(incarnation), name="psf-watch")

    async def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    async def _close(self) -> None:
        await self._stop()
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.gather(self._ticks, return_exceptions=True)
            self._ticks = None
        await self._line.__aexit__()

    async def _follow(self, incarnation: int) -> None:
        """Keeps the view up to date over broken streams and restarted coordinators."""
        pause = FIRST_PAUSE
        while True:
            request = pb.WatchViewRequest(incarnation=incarnation)
            try:
                async for message in self._line.stream("WatchView", request, pb.WatchViewResponse):
                    self._apply(delta_from_message(self.view, message))
                    pause = FIRST_PAUSE
            except Evicted as error:
                self._on_evicted(incarnation, error)
                return
            except StaleTerm as error:
                log.warning("the coordinator is stale: %s", error)
            except PsfError as error:
                log.info("lost sight of the coordinator: %s", error)
            if self._heartbeat is not None:
                self._heartbeat.kick()  # a closed stream and no renewal would mean that we are dead
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _apply(self, delta: Delta) -> None:
        before, self.view = self.view, self.view.apply(delta)
        self._changed.notify()
        lost = [(gone.member, gone.reason) for gone in delta.departed]
        for member in delta.changed:
            known = before.get(member.incarnation)
            newly = known is None or known.state is not MemberState.STALLED
            if member.state is MemberState.STALLED and newly:
                lost.append((member, Reason.STALLED))
        for member, reason in lost:
            if member.incarnation == self.member.incarnation:
                if reason is not Reason.STALLED:
                    error = Evicted(f"{member.name} was fenced ({reason}): join again")
                    self._on_evicted(member.incarnation, error)
                continue
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

    async def _count_turns(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self._turns += 1


def _guarded(hook: Callable[..., None], *arguments: object) -> None:
    """One broken hook must not end the watching."""
    try:
        hook(*arguments)
    except Exception:
        log.exception("a membership hook failed")


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        pass  # the loop is closed: nobody is left to hear it
