"""The coordinator's gRPC service: message, call of the Coordinator, message."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar, cast

import grpc

from psframework.errors import Evicted, PsfError, StaleTerm
from psframework.membership.barrier import Entry
from psframework.membership.barrier_desk import CoordinatorStopping
from psframework.membership.coordinator import Coordinator
from psframework.membership.keyvalue import KeyEntry
from psframework.membership.messages import (
    changes_to_message,
    delta_to_message,
    entry_to_message,
    member_to_message,
    view_to_message,
)
from psframework.membership.registry import JoinSpec
from psframework.membership.view import Member, View
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.proto.v1.coordinator_pb2_grpc import CoordinatorServiceServicer
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.identity import ANY_NAME, AuthContext, check_claim, identity
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
        except CoordinatorStopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator is stopping")

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
        holder = identity(cast(AuthContext, context))
        check_claim(holder, request.role, request.name)
        certified = holder.name if holder is not None and holder.name != ANY_NAME else ""
        spec = JoinSpec(
            request.role,
            request.name or certified,
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
        self._check_own(request.incarnation, context)
        seconds = coordinator.registry.renew(request.incarnation, request.tick, coordinator.clock())
        return pb.RenewResponse(term=coordinator.term, lease_seconds=seconds, view=coordinator.view.number)

    @_answers
    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        with suppress(Evicted):  # it is gone already
            self._check_own(request.incarnation, context)
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
                self._check_own(incarnation, context)
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

    @_answers
    async def GetKey(self, request: pb.GetKeyRequest, context: Context) -> pb.GetKeyResponse:
        entry = await self._coordinator.keys.get(request.key)
        return pb.GetKeyResponse(term=self._coordinator.term, entry=_optional(entry))

    @_answers
    async def PutKey(self, request: pb.PutKeyRequest, context: Context) -> pb.PutKeyResponse:
        self._check_writer(request.writer, context)
        keys = self._coordinator.keys
        decision = await keys.stored(
            keys.table.put(
                request.key,
                request.value,
                expected=request.expected_revision if request.HasField("expected_revision") else None,
                writer=request.writer,
                sequence=request.sequence,
            )
        )
        return pb.PutKeyResponse(
            term=self._coordinator.term, written=decision.done, entry=_optional(decision.entry)
        )

    @_answers
    async def DeleteKey(self, request: pb.DeleteKeyRequest, context: Context) -> pb.DeleteKeyResponse:
        self._check_writer(request.writer, context)
        expected = request.expected_revision if request.HasField("expected_revision") else None
        deleted = await self._coordinator.keys.delete(request.key, expected)
        return pb.DeleteKeyResponse(term=self._coordinator.term, deleted=deleted)

    @_answers
    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        entries = await self._coordinator.keys.list(request.prefix)
        return pb.ListKeysResponse(
            term=self._coordinator.term,
            revision=self._coordinator.keys.table.revision,
            entries=map(entry_to_message, entries),
        )

    async def WatchKeys(
        self, request: pb.WatchKeysRequest, context: Context
    ) -> AsyncIterator[pb.WatchKeysResponse]:
        try:
            self.check_term(request)
        except PsfError as error:
            await abort(context, error)
        async for changes in self._coordinator.keys.watch(request.prefix, request.after_revision):
            yield changes_to_message(self._coordinator.term, changes)

    @_answers
    async def EnterBarrier(
        self, request: pb.EnterBarrierRequest, context: Context
    ) -> pb.EnterBarrierResponse:
        coordinator = self._coordinator
        member = self._check_own(request.incarnation, context)
        timeout = request.timeout_seconds if request.HasField("timeout_seconds") else math.inf
        entry = Entry(member, request.entry, coordinator.clock() + timeout)
        names = await coordinator.barriers.enter(request.name, request.count, entry)
        return pb.EnterBarrierResponse(term=coordinator.term, names=names)

    def _check_writer(self, incarnation: int, context: Context) -> None:
        if incarnation:
            self._check_own(incarnation, context)

    def _check_own(self, incarnation: int, context: Context) -> Member:
        """Returns the caller's member; Evicted if it is none, PermissionDenied if it is somebody else's."""
        member = self._coordinator.registry.check_live(incarnation)
        check_claim(identity(cast(AuthContext, context)), member.role, member.name)
        return member


def _optional(entry: KeyEntry | None) -> pb.KeyEntry | None:
    return None if entry is None else entry_to_message(entry)
