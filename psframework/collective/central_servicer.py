"""The allreduce service: message, call of the desk, message. It waits for ranks, and computes in threads."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from types import TracebackType
from typing import Final, Self

import numpy as np

from psframework.collective import central_messages as messages
from psframework.collective.central_desk import LONGEST_NAME, Ask, CentralDesk
from psframework.collective.central_group import CentralGroup, Holder, Round
from psframework.collective.descriptor import Descriptor
from psframework.errors import ArgumentError, PeerLost, PsfError, RendezvousTimeout, WireError
from psframework.membership.signal import Signal
from psframework.proto.v1 import allreduce_pb2 as pb
from psframework.rpc.call import Call
from psframework.rpc.deadline import Clock, boottime
from psframework.rpc.security.identity import ANY_NAME
from psframework.rpc.service import Method
from psframework.wire.threads import in_thread

log = logging.getLogger("psframework.collective")

DEFAULT_LIMIT: Final = 4 << 30
DEFAULT_LEASE: Final = 60.0
LEASE_TICK: Final = 0.1
ANSWER_SECONDS: Final = 0.25
"""So much before the deadline of a call it is answered, so that the caller learns who is missing."""

SMALL: Final = 1 << 16
"""Bytes up to which an operation is computed on the loop: a thread would cost more."""


class AllreduceServicer:
    """Makes groups, hands out ranks, and computes what they ask for. An async context manager.

    Args:
        limit: bytes that the arrays of all operations may take at once.
        clock: for leases.
    """

    name = messages.SERVICE

    def __init__(self, limit: int = DEFAULT_LIMIT, clock: Clock = boottime) -> None:
        self.desk = CentralDesk(limit)
        self._clock = clock
        self._changed = Signal()
        self._watched: set[int] = set()
        self._tasks = asyncio.TaskGroup()
        self._leases: asyncio.Task[None] | None = None

    def methods(self) -> Sequence[Method]:
        """The methods of the service."""
        return (
            Method("Join", pb.JoinGroupRequest, pb.JoinGroupReply, self.join),
            Method("Run", pb.RunRequest, pb.RunReply, self.run),
            Method("Leave", pb.LeaveGroupRequest, pb.LeaveGroupReply, self.leave),
        )

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._leases = self._tasks.create_task(self._watch_leases(), name="psf-allreduce-leases")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leases is not None:
            self._leases.cancel()
        await self._tasks.__aexit__(None, None, None)

    # Methods

    async def join(self, request: pb.JoinGroupRequest, call: Call) -> pb.JoinGroupReply:
        """Hands out a rank once the group is complete."""
        holder = _holder(request, call)
        ask = Ask(request.group, request.size, holder, request.generation, request.completed)
        seconds = _seconds(request.timeout_seconds, call)
        group: CentralGroup | None = None
        try:
            with self._calling(holder):
                async with asyncio.timeout(seconds):
                    while (group := self.desk.join(ask)) is None:
                        await self._changed.wait()
                    self._changed.notify()
                    self._watch(holder, call)
                    while not group.complete and group.error is None:
                        await self._changed.wait()
        except TimeoutError:
            raise self._nobody_came(ask, group, seconds) from None
        except asyncio.CancelledError:
            if group is not None:
                self._lose(group, holder, "went away while it joined")
            raise
        if group.error is not None and not group.complete:
            raise copy(group.error)
        seat = pb.Seat(group=group.name, generation=group.generation, rank=holder.rank, secret=holder.secret)
        return pb.JoinGroupReply(seat=seat, names=group.names)

    async def run(self, request: pb.RunRequest, call: Call) -> pb.RunReply:
        """Does one operation together with the other ranks."""
        group, holder = self._find(request.seat, call)
        descriptor = messages.to_descriptor(request, group.size)
        _check_payload(descriptor, holder.rank, call)
        round_ = group.begin(holder, descriptor, self._clock(), self.desk.reserve)
        try:
            with self._calling(holder):
                await self._take(group, round_, holder, call)
                await self._settled(group, round_, _seconds(request.timeout_seconds, call))
        except asyncio.CancelledError:
            self._lose(group, holder, f"gave up operation {round_.sequence}")
            raise
        finally:
            self.desk.let_go(round_)
        return _reply(round_, holder.rank, call)

    def leave(self, request: pb.LeaveGroupRequest, call: Call) -> pb.LeaveGroupReply:
        """Takes a rank back."""
        group, holder = self._find(request.seat, call)
        reason = request.reason[:500]
        self._lose(group, holder, f"has left: {reason}" if reason else "has left")
        return pb.LeaveGroupReply()

    # What happens besides calls

    def lost(self, incarnation: int, reason: str) -> None:
        """A member of the cluster is lost."""
        self.desk.lose_member(incarnation, f"was lost: {reason}", reason)
        self._changed.notify()

    def drain(self) -> None:
        """The service is about to end: nobody shall wait for it."""
        for group in list(self.desk.groups.values()):
            group.fail(PeerLost(f"group {group.name!r}: the allreduce service ends", reason="closed"))
        self._changed.notify()

    async def _watch_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_TICK)
            before = len(self.desk.groups)
            self.desk.expire(self._clock())
            if len(self.desk.groups) != before:
                self._changed.notify()

    def _watch(self, holder: Holder, call: Call) -> None:
        """A member's ranks are lost with its session."""
        if call.caller is not None and holder.incarnation not in self._watched:
            self._watched.add(holder.incarnation)
            call.caller.when_lost(partial(self._session_ended, holder.incarnation))

    def _session_ended(self, incarnation: int) -> None:
        self._watched.discard(incarnation)
        self.lost(incarnation, "closed")

    def _lose(self, group: CentralGroup, holder: Holder, why: str, reason: str = "closed") -> None:
        self.desk.lose(group, holder, why, reason)
        self._changed.notify()

    # Parts of a call

    def _find(self, seat: pb.Seat, call: Call) -> tuple[CentralGroup, Holder]:
        group = self.desk.find(seat.group, seat.generation)
        return group, group.find(seat.rank, seat.secret, call.peer.incarnation)

    @contextmanager
    def _calling(self, holder: Holder) -> Iterator[None]:
        holder.calls += 1
        try:
            yield
        finally:
            holder.calls -= 1
            holder.heard = self._clock()

    async def _take(self, group: CentralGroup, round_: Round, holder: Holder, call: Call) -> None:
        """Waits for the data of a rank; with the last rank's, the operation is computed."""
        try:
            views = await call.payload.whole()
        except PsfError as error:
            self._lose(group, holder, f"sent its array only in part: {error}")
            raise
        if round_.settled:
            return
        data = views[0] if views else memoryview(b"")
        round_.give(holder.rank, messages.to_array(round_.said[holder.rank], holder.rank, data))
        if round_.ready:
            self._tasks.create_task(self._compute(group, round_), name="psf-allreduce")

    async def _compute(self, group: CentralGroup, round_: Round) -> None:
        try:
            if round_.reserved <= SMALL:
                results = group.compute(round_)
            else:
                results = await in_thread(group.compute, round_)
        except PsfError as error:
            group.finish(round_, None, error)
        except Exception as error:  # such as no memory: the ranks must learn of it, and others live on
            log.exception("operation %d of group %r failed", round_.sequence, group.name)
            group.finish(round_, None, PsfError(f"the allreduce service failed: {error!r}"))
        else:
            group.finish(round_, results, None)

    async def _settled(self, group: CentralGroup, round_: Round, seconds: float | None) -> None:
        """Waits for the other ranks; if they do not come in time, the group has failed."""
        if not round_.settled:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            round_.on_settled.append(lambda: None if settled.done() else settled.set_result(None))
            done, _ = await asyncio.wait([settled], timeout=seconds)
            if not done and not round_.ready:
                group.fail(group.late(seconds or 0.0))
            await settled
        if round_.error is not None:
            raise copy(round_.error)  # each call its own: what was raised keeps its frames, and so arrays

    def _nobody_came(self, ask: Ask, group: CentralGroup | None, seconds: float | None) -> RendezvousTimeout:
        holder, there = ask.holder, self.desk.groups.get(ask.group)
        names = ", ".join(there.names) if there is not None else ""
        if group is None:
            return RendezvousTimeout(f"group {ask.group!r} is complete, and goes on with {names}")
        text = f"group {ask.group!r}: in {seconds:.3g} s {len(group.holders)} of {ask.size} came: {names}"
        self._lose(group, holder, "waited in vain for others")
        return RendezvousTimeout(text)


def _holder(request: pb.JoinGroupRequest, call: Call) -> Holder:
    peer = call.peer
    proven = peer.incarnation or (peer.certificate_name is not None and peer.name != ANY_NAME)
    name = peer.name if proven else request.name[:LONGEST_NAME] or peer.name
    if not 0 <= request.lease_seconds < math.inf:
        raise ArgumentError(f"a lease of {request.lease_seconds} s")
    return Holder(
        name,
        peer.incarnation,
        secrets.randbits(64),
        request.rank if request.HasField("rank") else None,
        math.inf if peer.incarnation else request.lease_seconds or DEFAULT_LEASE,
    )


def _seconds(asked: float, call: Call) -> float | None:
    """How long to wait for others: as long as was asked for, or until shortly before the call's deadline."""
    if asked > 0:
        return asked
    seconds = call.deadline.seconds()
    return None if seconds is None else max(seconds - ANSWER_SECONDS, seconds / 2)


def _check_payload(descriptor: Descriptor, rank: int, call: Call) -> None:
    """Before the rank counts as having come: one that sends nonsense may try again."""
    wanted = messages.nbytes(descriptor) if messages.gives(descriptor, rank) else 0
    came = sum(call.payload.sizes)
    if came != wanted or len(call.payload.sizes) > 1:
        raise WireError(f"{descriptor} of rank {rank} takes {wanted} bytes of data, {came} came")


def _reply(round_: Round, rank: int, call: Call) -> pb.RunReply:
    told = round_.told
    result = round_.results[rank] if round_.results is not None else None
    if result is not None:
        call.reply_parts([result.view(np.uint8).data])
    return pb.RunReply(dtype=told.dtype, shape=told.shape)
