"""The keeper's gRPC service: message, call of the Keeper, message."""

from __future__ import annotations

from typing import cast

import grpc

from psframework.errors import PermissionDenied
from psframework.membership.names import check_name
from psframework.parameter_server.keeper import Admitted, Application, Keeper
from psframework.parameter_server.messages import (
    model_info,
    parameters_from_message,
    parameters_to_message,
    partition_to_message,
    shard_to_message,
)
from psframework.parameter_server.registry import Applicant, ModelSpec
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.proto.v1.parameter_server_pb2_grpc import ModelServiceServicer
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.identity import ANY_NAME, AuthContext, identity

Context = grpc.aio.ServicerContext[object, object]
DEFAULT_SECONDS = 60.0
GRACE = 0.5  # seconds, at most, by which we give up earlier than the caller, so that our reason arrives


class KeeperServicer(ModelServiceServicer):
    """Serves one Keeper, which its creator opens and closes."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        """Adds a trainer or a reader."""
        self._check_applicant(request, context)
        application = Application(
            request.job,
            request.model,
            ModelSpec(parameters_from_message(request.parameters), request.rule, request.policy),
            Applicant(request.member, request.incarnation, request.registration, request.reader),
            request.partitioner,
            request.keep,
        )
        admitted = await self._keeper.register(application, _deadline(context))
        return _register_reply(admitted, self._keeper.term)

    async def FinishInitialization(
        self, request: pb.FinishInitializationRequest, context: Context
    ) -> pb.FinishInitializationReply:
        """The first values are complete."""
        self._check_writer(request.table, request.writer, context)
        await self._keeper.finish_initialization(request.table, request.writer, _deadline(context))
        return pb.FinishInitializationReply(term=self._keeper.term)

    async def LeaveModel(self, request: pb.LeaveModelRequest, context: Context) -> pb.LeaveModelReply:
        """Ends a participation."""
        if request.registration:
            await self._keeper.withdraw(request.table, request.registration, _deadline(context))
        else:
            self._check_writer(request.table, request.writer, context)
            await self._keeper.leave(request.table, request.writer, request.until_step, _deadline(context))
        return pb.LeaveModelReply(term=self._keeper.term)

    async def CommitStep(self, request: pb.CommitStepRequest, context: Context) -> pb.CommitStepReply:
        """A step is complete."""
        self._check_writer(request.table, request.writer, context)
        await self._keeper.commit_step(request.table, request.writer, request.step, _deadline(context))
        return pb.CommitStepReply(term=self._keeper.term)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsReply:
        """Describes every model."""
        models = [model_info(cell.current(), len(cell.partitions)) for cell in self._keeper.models]
        return pb.ListModelsReply(term=self._keeper.term, models=models)

    def _check_applicant(self, request: pb.RegisterRequest, context: Context) -> None:
        """A member registers itself, in its own job; a service, in the job of whoever it works for.

        Foreign clients have no incarnation to go by.
        """
        _check_holder(request.member, context)
        if request.incarnation:
            coordinator = self._keeper.coordinator
            member = coordinator.registry.check_live(request.incarnation)
            if member.name != request.member or member.job not in ("", request.job):
                raise PermissionDenied(
                    f"incarnation {member.incarnation} is {member.name!r} of job {member.job!r}, "
                    f"not {request.member!r} of {request.job!r}"
                )
            check_name(request.job, "job")
            if not coordinator.has_job(request.job):  # it would never end, and the model with it
                raise PermissionDenied(
                    f"{member.name!r} can't register a model in job {request.job!r}: it has no members"
                )

    def _check_writer(self, table: str, writer: int, context: Context) -> None:
        """A registration is its member's own, as far as certificates prove who that is."""
        cell = self._keeper.models.begun(table)
        for registration in cell.record.registrations if cell is not None and cell.record else ():
            if registration.writer == writer:
                _check_holder(registration.applicant.member, context)


def _check_holder(member: str, context: Context) -> None:
    holder = identity(cast(AuthContext, context))
    if holder is not None and holder.name not in (ANY_NAME, member):
        raise PermissionDenied(f"your certificate is for {holder.name!r}: you can't speak for {member!r}")


def _register_reply(admitted: Admitted, term: int) -> pb.RegisterReply:
    record = admitted.record
    entry = record.entry(admitted.writer)
    return pb.RegisterReply(
        term=term,
        writer=admitted.writer,
        slot=entry.slot if entry else 0,
        step=entry.from_step if entry else 0,
        initialize=admitted.initialize,
        shards=map(shard_to_message, record.shards),
        partitions=map(partition_to_message, admitted.cell.partitions),
        rule=record.spec.rule,
        policy=record.spec.policy,
        parameters=parameters_to_message(record.spec.parameters),
    )


def _deadline(context: Context) -> Deadline:
    remaining = context.time_remaining()
    seconds = DEFAULT_SECONDS if remaining is None else remaining - min(GRACE, 0.3 * remaining)
    return Deadline.after(seconds)
