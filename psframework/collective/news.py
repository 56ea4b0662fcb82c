"""What a rank tells the others of its group, and asks them, beside the operations themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import Message

from psframework.collective.carrier import SERVICE
from psframework.collective.recorder import Standing
from psframework.collective.seat import Seat
from psframework.errors import PeerLost
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.errand import Errand, Operation
from psframework.rpc.functions.routes import Routes
from psframework.rpc.status import error_to_detail
from psframework.rpc.values.journey import Journey

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 2.0
CLOSE_SECONDS: Final = 1.0  # that a rank which leaves waits until the others know
EVERYBODY: Final = 32
"""Up to so many ranks, each tells each of what ends the group; beyond, those that it has sessions with."""


def _itself(reply: Any, parts: Sequence[memoryview], journey: Journey) -> Any:
    return reply


ABORT: Final = Operation(f"/{SERVICE}/Abort", pb.AbortReply, _itself, lambda request: True)
REPORT: Final = Operation(f"/{SERVICE}/Report", pb.ReportReply, _itself, lambda request: True)


class News:
    """Messages that nobody waits for long.

    Args:
        routes: the way to members.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def failed(self, seat: Seat, error: BaseException) -> None:
        """The group has ended for all its ranks."""
        self._tell(seat, pb.AbortRequest(group=seat.id, source=seat.rank, error=error_to_detail(error)))

    def heard(self, seat: Seat, error: BaseException) -> None:
        """This rank was told that the group has ended; among many, that is how the others hear of it."""
        if len(seat.members) > EVERYBODY:
            self.failed(seat, error)

    async def closed(
        self, seat: Seat, completed: int, why: BaseException | None = None, *, wait: bool = True
    ) -> None:
        """This rank has closed the group after that operation; returns once the others know, or at once.

        Args:
            seat: its seat.
            completed: the operation.
            why: what the group had ended with: a loss the others may not have heard of yet.
            wait: until they know.
        """
        request = pb.AbortRequest(group=seat.id, source=seat.rank, completed=completed)
        if completed and isinstance(why, PeerLost) and why.rank != seat.rank:
            request.error.CopyFrom(error_to_detail(why))
        told = self._tell(seat, request)
        if told and wait:
            await asyncio.wait(told, timeout=CLOSE_SECONDS)

    async def standings(self, seat: Seat, deadline: Deadline) -> dict[int, Standing]:
        """Where the other ranks are, of those that answer in time."""
        asked = {
            rank: self._send(REPORT, pb.ReportRequest(group=seat.id), seat, rank, deadline)
            for rank in range(len(seat.members))
            if rank != seat.rank and rank not in seat.lost
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=deadline.seconds())
        found: dict[int, Standing] = {}
        for rank, answer in asked.items():
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                reply = answer.result()
                found[rank] = Standing(
                    reply.completed, reply.completed_text, reply.running, reply.running_text, reply.seconds
                )
            else:
                answer.cancel()
        return found

    def _tell(self, seat: Seat, request: pb.AbortRequest) -> list[asyncio.Future[Any]]:
        gone = {seat.rank} | seat.lost | seat.departed
        ranks = range(len(seat.members)) if len(seat.members) <= EVERYBODY else sorted(seat.connected)
        deadline = Deadline.after(TELL_SECONDS)
        return [self._send(ABORT, request, seat, rank, deadline) for rank in ranks if rank not in gone]

    def _send(
        self, operation: Operation, request: Message, seat: Seat, rank: int, deadline: Deadline
    ) -> asyncio.Future[Any]:
        errand = Errand(self._routes, operation, request, Journey(), deadline)
        errand.future.add_done_callback(_looked_at)
        member = seat.members[rank]
        self._routes.send(errand, member.name, member.incarnation)
        return errand.future


def _looked_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.debug("a rank was not told: %s", error)
