"""Opening a model on the parameter server: registration, connections, memory."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Sequence
from typing import NotRequired, TypedDict, Unpack

from psframework.autograd.tensor import Tensor
from psframework.errors import ArgumentError, PsfError
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.parameter_server.arena import ModelMemory, parameter_specs
from psframework.parameter_server.calls import call_keeper, each
from psframework.parameter_server.handle import LEAVE_SECONDS, ParameterServer
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.link import Runtime, ShardLink
from psframework.parameter_server.messages import (
    parameters_to_message,
    roster_from_message,
    shard_from_message,
)
from psframework.parameter_server.partition import CUT_ANYWHERE, Partitioner
from psframework.parameter_server.policy import ASP, BSP, SSP, Policy, for_world, policy_spec
from psframework.parameter_server.registry import table_name
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Deadline
from psframework.rpc.world import world_size

__all__ = ["OpenOptions", "ParameterServer", "open_parameter_server", "trainers_of"]

log = logging.getLogger(__name__)


class OpenOptions(TypedDict):
    """Keywords of `open_parameter_server`.

    name: of the model, within the job.
    job: the model's; the runtime's if it is not given.
    optimizer: what the server updates with; needed unless `reader`.
    consistency: policy; BSP() by default, which waits for all ranks of `psf run`.
    reader: only pulls; never counted, never waited for.
    keep: the model outlives its job.
    partitioner: how parameters are spread over the shards; the first registrant decides.
    timeout: seconds for opening.
    """

    name: NotRequired[str]
    job: NotRequired[str]
    optimizer: NotRequired[Optimizer | None]
    consistency: NotRequired[Policy | None]
    reader: NotRequired[bool]
    keep: NotRequired[bool]
    partitioner: NotRequired[Partitioner | None]
    timeout: NotRequired[float]


async def open_parameter_server(
    runtime: Runtime, model: Module, **options: Unpack[OpenOptions]
) -> ParameterServer:
    """Registers a model, and creates it if it is the first; on return it holds the server's values.

    Args:
        runtime: the cluster.
        model: its parameters move into one arena.
        options: see `OpenOptions`.

    Raises:
        ArgumentError: a trainer without an optimizer, or a model that can't be served.
        ModelMismatch: another shape, dtype, rule or policy is registered under the name.
        UnknownTable: a reader of a model that nobody registered.
        RendezvousTimeout: there is no shard, or the first registrant did not finish.
    """
    _check_kinds(model, options)
    parameters = list(model.named_parameters())
    request = _register_request(runtime, parameter_specs(parameters), options)
    deadline = Deadline.after(options.get("timeout", 30.0))
    table = table_name(request.job, request.model)
    try:
        reply = await call_keeper(runtime, "Register", request, pb.RegisterReply, deadline)
        shared = await _sees_our_memory(runtime, table, reply, deadline)
        memory = await compute(_memory, parameters, shared=shared)
        handle = ParameterServer(runtime, memory, reply, table, reader=request.reader)
        try:
            await handle.open(reply.initialize, deadline)
        except BaseException:
            handle.let_go()
            raise
    except (Exception, asyncio.CancelledError):  # whatever it is: others must not wait for us
        await _withdraw(runtime, table, request.registration)
        raise
    return handle


async def trainers_of(runtime: Runtime, job: str, name: str, deadline: Deadline) -> dict[int, str]:
    """Who trains a model now: slot -> name of the member, lower for who came earlier.

    Args:
        runtime: the cluster.
        job: of the model.
        name: of the model; of one that nobody registered there are none.
        deadline: for the coordinator's answer.
    """
    reply = await call_keeper(runtime, "ListModels", pb.ListModelsRequest(), pb.ListModelsReply, deadline)
    rosters = [each.roster for each in reply.models if (each.job, each.model) == (job, name)]
    return {entry.slot: entry.name for each in rosters for entry in roster_from_message(each).open_entries()}


async def _sees_our_memory(runtime: Runtime, table: str, reply: pb.RegisterReply, deadline: Deadline) -> bool:
    """Connects to all shards; whether one of them is on this host."""
    shards = [shard_from_message(shard) for shard in reply.shards]
    probes = [ShardLink(runtime, table, reply.writer, shard, ()) for shard in shards]
    return any(await each(probe.connect(deadline) for probe in probes))


def _check_kinds(model: object, options: OpenOptions) -> None:
    """What is easily passed in place of the thing itself: a name, or the class without parentheses."""
    if not isinstance(model, Module):
        raise ArgumentError(f"the model must be an nn.Module, not {model!r}")
    optimizer, policy = options.get("optimizer"), options.get("consistency")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"optimizer must be one of optim, such as optim.SGD(lr=0.1), not {optimizer!r}")
    if policy is not None and not isinstance(policy, ASP | BSP | SSP):
        raise ArgumentError(f"consistency must be psf.BSP(), psf.ASP() or psf.SSP(...), not {policy!r}")


def _register_request(
    runtime: Runtime, specs: Sequence[ParameterSpec], options: OpenOptions
) -> pb.RegisterRequest:
    optimizer, reader = options.get("optimizer"), options.get("reader", False)
    policy = options.get("consistency")
    if policy is None and not reader:
        policy = BSP()
    if optimizer is None and not reader:
        raise ArgumentError(
            f"{type(policy).__name__}() needs an optimizer for the server to update with, such as "
            "optimizer=optim.SGD(lr=0.1); only readers (reader=True) go without"
        )
    if optimizer is not None:
        optimizer.rule.require_elementwise(CUT_ANYWHERE)
    partitioner = options.get("partitioner")
    member = runtime.membership.member
    return pb.RegisterRequest(
        job=options.get("job", runtime.job),
        model=options.get("name", "model"),
        parameters=parameters_to_message(specs),
        rule="" if optimizer is None else _json(optimizer.rule.spec()),
        policy="" if policy is None else _json(policy_spec(for_world(policy, world_size()))),
        partitioner="" if partitioner is None else _json(partitioner.spec()),
        reader=reader,
        keep=options.get("keep", False),
        member=member.name,
        incarnation=member.incarnation,
        registration=secrets.token_hex(16),
    )


def _memory(parameters: Sequence[tuple[str, Tensor]], *, shared: bool) -> ModelMemory:
    if shared:
        try:
            return ModelMemory(parameters, shared=True)
        except PsfError as error:
            log.warning("values travel by other lanes than shared memory: %s", error)
    return ModelMemory(parameters, shared=False)


async def _withdraw(runtime: Runtime, table: str, registration: str) -> None:
    """Whatever became of the registration: nobody shall wait for us."""
    request = pb.LeaveModelRequest(table=table, registration=registration)
    try:
        await call_keeper(runtime, "LeaveModel", request, pb.LeaveModelReply, Deadline.after(LEAVE_SECONDS))
    except PsfError as error:
        log.info("%s: a registration could not be withdrawn: %s", table, error)


def _json(spec: object) -> str:
    return json.dumps(spec, sort_keys=True)
