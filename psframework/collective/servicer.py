"""CollectiveService: what the other ranks of groups send to this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from psframework.collective.carrier import SERVICE
from psframework.collective.post import Key, Letter
from psframework.collective.seat import Seat
from psframework.errors import ContextClosed, PeerLost, PermissionDenied, WireError
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.call import Call
from psframework.rpc.deadline import Deadline
from psframework.rpc.service import Method
from psframework.rpc.session.peer import Peer
from psframework.rpc.status import detail_to_error


class Seats(Protocol):
    """The seats of this process."""

    async def find(self, id: pb.GroupId, deadline: Deadline) -> Seat:
        """The seat in a generation; waits for one that is being taken.

        Raises:
            NotRegistered: there is none.
            ContextClosed: it was given back.
        """
        ...

    def pass_on(self, seat: Seat, error: BaseException) -> None:
        """This rank was told that the group has ended."""
        ...


class CollectiveService:
    """The servicer.

    Args:
        seats: those of this process.
    """

    name = SERVICE

    def __init__(self, seats: Seats) -> None:
        self._seats = seats

    def methods(self) -> Sequence[Method]:
        """The methods of CollectiveService."""
        return [
            Method("Setup", pb.SetupRequest, pb.SetupReply, self.setup),
            Method("Deliver", pb.DeliverRequest, pb.DeliverReply, self.deliver),
            Method("Abort", pb.AbortRequest, pb.AbortReply, self.abort),
            Method("Report", pb.ReportRequest, pb.ReportReply, self.report),
        ]

    async def setup(self, request: pb.SetupRequest, call: Call) -> pb.SetupReply:
        """Takes memory of this host, from its leader."""
        caller, seat = await self._from_a_rank(request.group, call)
        local = list(request.local)
        if seat.rank not in local or local != sorted(set(local)) or local[-1] >= len(seat.members):
            raise WireError(f"ranks {local} of a host can't be right for {seat.who(seat.rank)}")
        seat.check(local[0], caller)
        if request.segment:
            seat.receive(request.number, call.segments(request.segment))
        else:
            seat.own(request.number, None)
        return pb.SetupReply()

    async def deliver(self, request: pb.DeliverRequest, call: Call) -> pb.DeliverReply:
        """Puts a letter into the mailbox."""
        try:
            caller, seat = await self._from_a_rank(request.group, call)
            seat.check(request.source, caller)
            parts = await call.payload.whole() if call.payload.sizes else []
            key = Key(request.channel, request.sequence, request.step)
            await seat.post.deliver(request.source, key, Letter(request.header, parts), call.deadline)
        except ContextClosed:  # not a failure here: the sender hears that this rank has gone
            return pb.DeliverReply(closed=True)
        return pb.DeliverReply()

    async def abort(self, request: pb.AbortRequest, call: Call) -> pb.AbortReply:
        """The group has ended for one of its ranks."""
        try:
            caller, seat = await self._from_a_rank(request.group, call)
        except ContextClosed:
            return pb.AbortReply()  # it has ended here too
        seat.check(request.source, caller)
        error = detail_to_error(request.error) if request.HasField("error") else None
        if error is None or request.completed:
            why = error if isinstance(error, PeerLost) else None
            seat.depart(request.source, request.completed, why)
            return pb.AbortReply()
        first = seat.error is None
        seat.abort(error)
        if first:
            self._seats.pass_on(seat, error)
        return pb.AbortReply()

    async def report(self, request: pb.ReportRequest, call: Call) -> pb.ReportReply:
        """Where this rank is."""
        _, seat = await self._from_a_rank(request.group, call)
        reply = pb.ReportReply()
        if seat.group is not None:
            standing = seat.group.recorder.standing()
            reply.completed, reply.completed_text = standing.completed, standing.completed_text
            reply.running, reply.running_text = standing.running, standing.running_text
            reply.seconds = standing.seconds
        return reply

    async def _from_a_rank(self, id: pb.GroupId, call: Call) -> tuple[Peer, Seat]:
        """Who called, and our seat, if the caller has one in the same generation."""
        if call.caller is None:
            raise PermissionDenied("process groups need a session: connect with psframework")
        seat = await self._seats.find(id, call.deadline)
        if seat.rank_of(call.caller.info.incarnation) is None:
            raise PermissionDenied(f"{call.caller.info.name} is not in {seat}")
        return call.caller, seat
