"""The coordinator's gRPC service: message, call of the Coordinator, message."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar, cast

import grpc

from psframework.errors import PsfError, StaleTerm
from psframework.membership.coordinator import Coordinator
from psframework.membership.messages import delta_to_message, member_to_message, view_to_message
from psframework.membership.registry import JoinSpec
from psframework.membership.view import View
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.proto.v1.coordinator_pb2_grpc import CoordinatorServiceServicer
from psframework.rpc.deadline import Deadline
from psframework.rpc.identity import AuthContext, check_claim, identity
from psframework.rpc.status import abort


class _Request(Protocol):
    @property
    def term(self) -> int: ...


Q = TypeVar("Q", bound=_Request)
R = TypeVar("R")
Context = grpc.aio.ServicerContext[object, object]
_Unary = Callable[["CoordinatorServicer", Q, Context], Awaitable[R]]


def _answers(method: _Unary[Q, R]) -> _Unary[Q, R]:
    """Refuses requests that have seen a newer term, and sends our exceptions as statuses."""

    @functools.wraps(method)
    async def answered(self: CoordinatorServicer, request: Q, context: Context) -> R:
        try:
            self.check_term(request)
            return await method(self, request, context)
        except PsfError as error:
            await abort(context, error)

    return answered


class CoordinatorServicer(CoordinatorServiceServicer):
    """Serves one Coordinator, which its creator opens and closes."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def check_term(self, request: _Request) -> None:
        """Raises StaleTerm if the sender has seen a newer coordinator than this one."""
        if request.term > self._coordinator.term:
            raise StaleTerm(
                f"this coordinator is of term {self._coordinator.term}, but you have seen {request.term}: "
                "it was replaced"
            )

    @_answers
    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        check_claim(identity(cast(AuthContext, context)), request.role, request.name)
        spec = JoinSpec(
            request.role,
            request.name,
            request.job,
            tuple(request.addresses),
            request.lease_seconds,
            dict(request.labels),
            request.nonce,
        )
        deadline = Deadline.after(request.timeout_seconds, clock=self._coordinator.clock)
        member = await self._coordinator.join(spec, deadline)
        return pb.JoinResponse(member=member_to_message(member), term=self._coordinator.term)

    @_answers
    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:
        coordinator = self._coordinator
        seconds = coordinator.registry.renew(request.incarnation, request.tick, coordinator.clock())
        return pb.RenewResponse(term=coordinator.term, lease_seconds=seconds, view=coordinator.view.number)

    @_answers
    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        await self._coordinator.leave(request.incarnation)
        return pb.LeaveResponse(term=self._coordinator.term)

    @_answers
    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        view = self._coordinator.view
        return pb.ListMembersResponse(
            term=self._coordinator.term, number=view.number, members=map(member_to_message, view.members)
        )

    async def WatchView(
        self, request: pb.WatchViewRequest, context: Context
    ) -> AsyncIterator[pb.WatchViewResponse]:
        coordinator, incarnation = self._coordinator, request.incarnation
        try:
            self.check_term(request)
            if incarnation:
                coordinator.registry.check_live(incarnation)
        except PsfError as error:
            await abort(context, error)
        stream = coordinator.open_stream(incarnation)
        try:
            async for update in coordinator.views():
                if isinstance(update, View):
                    yield view_to_message(coordinator.term, update)
                else:
                    yield delta_to_message(coordinator.term, update)
        finally:
            coordinator.close_stream(incarnation, stream)
