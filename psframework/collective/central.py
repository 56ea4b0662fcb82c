"""Collectives through the allreduce service: each operation is one call, which all ranks make.

For members that can't reach each other, only the service. It computes in the order of ranks, so the bits are
those of members that compute among themselves.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import numpy as np
from google.protobuf.message import Message

from psframework.collective import central_messages as messages
from psframework.collective.work import Flat, Work
from psframework.errors import PeerLost, PsfError, ResourceExhausted, WireError
from psframework.proto.v1 import allreduce_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.wire.device_bytes import Part
from psframework.wire.threads import in_thread

M = TypeVar("M", bound=Message)

GRACE_SECONDS: Final = 2.0
"""The service knows who is missing, so it gets to answer before the call's own deadline."""

LEAVE_SECONDS: Final = 1.0
THREAD_BYTES: Final = 1 << 20
"""Results from this size on are copied in a thread: the loop has others to serve."""


class Service(Protocol):
    """The part of a `Peer` that is needed here."""

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
    ) -> tuple[M, list[memoryview]]: ...


class Central:
    """Implements Transport; made by `join`. On the loop, but for `start` and `abort`.

    Args:
        service: the allreduce service.
        seat: the right to act as a rank there.
        names: of the members, by rank.
    """

    name = "central"
    lives_on = True

    def __init__(self, service: Service, seat: pb.Seat, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.rank = seat.rank
        self._service = service
        self._seat = seat
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    @classmethod
    async def join(
        cls, service: Service, group: str, size: int, deadline: Deadline, *, rank: int | None = None,
        generation: int = 0, completed: int = 0,
    ) -> Central:  # fmt: skip
        """Waits until the group is complete at the service.

        Args:
            service: a session with a member of the role "allreduce".
            group: its name; members put their job before it.
            size: number of ranks.
            deadline: when to give up.
            rank: the rank that all have agreed on; None: any.
            generation: the one that all have agreed on; 0: the one that gathers there.
            completed: number of the last operation in an earlier generation that this one continues.

        Raises:
            RendezvousTimeout: names who came.
            PsfError: the service refused.
        """
        request = pb.JoinGroupRequest(
            group=group, size=size, rank=rank, generation=generation, completed=completed
        )
        if (seconds := deadline.seconds()) is not None:
            request.timeout_seconds = max(seconds, 0.001)
        late = Deadline(deadline.at + GRACE_SECONDS)
        reply, _ = await service.call(messages.path("Join"), request, pb.JoinGroupReply, deadline=late)
        return cls(service, reply.seat, reply.names)

    def start(self, work: Work) -> None:
        """Asks the service; the loop goes on with it."""
        self._loop.call_soon_threadsafe(self._begin, work)

    def abort(self, error: BaseException) -> None:
        """Gives the rank back, so that the others learn of it."""
        self._loop.call_soon_threadsafe(self._give_up, error)

    async def close(self) -> None:
        """Gives the rank back."""
        self._give_up(PeerLost("the group is closed", reason="closed"))
        waited = [task for task in (self._running, self._leaving) if task is not None]
        await asyncio.gather(*waited, return_exceptions=True)

    def _begin(self, work: Work) -> None:
        if self._error is not None:
            work.done(work, self._error)
            return
        self._running = self._loop.create_task(self._run(work), name="psf-central")
        self._running.add_done_callback(functools.partial(self._ended, work))

    def _ended(self, work: Work, task: asyncio.Task[None]) -> None:
        self._running = None
        error = self._error if task.cancelled() else task.exception()
        work.done(work, error)

    def _give_up(self, error: BaseException) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._running is not None:
            self._running.cancel()
        self._leaving = self._loop.create_task(self._leave(str(error)), name="psf-central-leave")

    async def _leave(self, reason: str) -> None:
        request = pb.LeaveGroupRequest(seat=self._seat, reason=reason)
        deadline = Deadline.after(LEAVE_SECONDS)
        try:
            await self._service.call(messages.path("Leave"), request, pb.LeaveGroupReply, deadline=deadline)
        except PsfError:
            pass  # it learns from the end of the session

    async def _run(self, work: Work) -> None:
        reply, parts = await self._ask(work)
        descriptor = work.descriptor
        if work.receive is None and descriptor.open and work.allocate is not None:
            work.receive = work.allocate(
                replace(descriptor, dtype=reply.dtype, shape=tuple(reply.shape), open=False)
            )
        if work.receive is None:
            return
        data = parts[0] if parts else memoryview(b"")
        if len(data) != work.receive.nbytes:
            raise WireError(f"{descriptor}: the service sent {len(data)} bytes, not {work.receive.nbytes}")
        copy = functools.partial(np.copyto, work.receive.view(np.uint8), np.frombuffer(data, np.uint8))
        if len(data) < THREAD_BYTES:
            copy()
        else:
            await in_thread(copy)

    async def _ask(self, work: Work) -> tuple[pb.RunReply, list[memoryview]]:
        """Asks until there is room at the service for the arrays of this operation."""
        request = messages.to_request(work.descriptor, self._seat)
        parts = [] if work.send is None else [_bytes(work.send)]
        late = Deadline(work.deadline.at + GRACE_SECONDS)
        while True:
            if (seconds := work.deadline.seconds()) is not None:
                request.timeout_seconds = max(seconds, 0.001)
            try:
                return await self._service.call(
                    messages.path("Run"), request, pb.RunReply, parts=parts, deadline=late
                )
            except ResourceExhausted as error:
                if not 0 < error.retry_after < work.deadline.remaining():
                    raise
                await asyncio.sleep(error.retry_after)


def _bytes(array: Flat) -> memoryview:
    return array.view(np.uint8).data
