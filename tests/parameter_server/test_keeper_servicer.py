"""The keeper answers a stock stub: registering, leaving and listing, and what is wrong is said."""

from __future__ import annotations

import json

import grpc
import pytest

from psframework import optim
from psframework.errors import (
    ArgumentError,
    Evicted,
    ModelMismatch,
    NotRegistered,
    PermissionDenied,
    UnknownTable,
    WireError,
)
from psframework.membership.client import JoinRequest, Membership
from psframework.parameter_server.keeper_servicer import KeeperServicer
from psframework.parameter_server.policy import ASP, policy_spec
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.proto.v1.parameter_server_pb2_grpc import ModelServiceStub
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import from_rpc_error
from psframework.testing.servers import servers

RULE = json.dumps(optim.SGD(lr=0.1).rule.spec())
POLICY = json.dumps(policy_spec(ASP()))


@pytest.fixture(scope="module")
async def stub():
    async with servers(2) as made, grpc.aio.insecure_channel(made.address) as channel:
        yield ModelServiceStub(channel)


def register(model: str, token: str, **changes) -> pb.RegisterRequest:
    values = {
        "job": "j",
        "model": model,
        "parameters": [pb.Parameter(name="w", dtype="float32", shape=[100])],
        "rule": RULE,
        "policy": POLICY,
        "member": "stranger",
        "incarnation": 0,
        "registration": token,
    }
    return pb.RegisterRequest(**(values | changes))


async def test_a_model_is_made_finished_listed_and_left(stub: ModelServiceStub):
    reply = await stub.Register(register("net", "one"), timeout=10)
    assert reply.initialize
    assert [shard.name for shard in reply.shards] == ["parameter-server-0", "parameter-server-1"]
    assert sum(p.size for p in reply.partitions) >= 100
    again = await stub.Register(register("net", "one"), timeout=10)
    assert (again.writer, again.initialize) == (reply.writer, True)
    finish = pb.FinishInitializationRequest(table="j/net", writer=reply.writer)
    await stub.FinishInitialization(finish, timeout=10)
    await stub.FinishInitialization(finish, timeout=10)
    second = await stub.Register(register("net", "two"), timeout=10)
    assert not second.initialize
    assert second.slot == 1
    info = next(m for m in (await stub.ListModels(pb.ListModelsRequest())).models if m.model == "net")
    assert [entry.writer for entry in info.roster.entries] == [reply.writer, second.writer]
    assert info.roster.ready
    await stub.LeaveModel(pb.LeaveModelRequest(table="j/net", writer=second.writer), timeout=10)
    await stub.LeaveModel(pb.LeaveModelRequest(table="j/net", registration="one"), timeout=10)
    await stub.LeaveModel(pb.LeaveModelRequest(table="j/net", registration="never"), timeout=10)
    info = next(m for m in (await stub.ListModels(pb.ListModelsRequest())).models if m.model == "net")
    assert all(entry.until_step_plus_one for entry in info.roster.entries)


@pytest.mark.parametrize(
    ("method", "request_", "error", "words"),
    [
        ("Register", register("none", "r", reader=True), UnknownTable, "'j/none'"),
        ("Register", register("mine", "r", incarnation=7), Evicted, "incarnation 7 is no member"),
        ("Register", register("none", "r", job="a/b"), ArgumentError, "job 'a/b'"),
        ("Register", register("none", "r", rule=""), UnknownTable, "with an optimizer"),
        ("Register", register("none", "r", rule='{"name": "nope"}'), ArgumentError, "nope"),
        ("Register", register("none", "r", rule="{"), WireError, "not JSON"),
        ("Register", register("none", "r", policy="[]"), WireError, "JSON object"),
        ("Register", register("none", "r", partitioner='{"name": "x"}'), ArgumentError, "partitioner"),
        ("Register", register("none", "r", parameters=[]), ArgumentError, "no parameters"),
        (
            "Register",
            register("none", "r", parameters=[pb.Parameter(name="w", dtype="object", shape=[1])]),
            ArgumentError,
            "object",
        ),
        ("Register", register("mine", "r", parameters=[pb.Parameter(name="v")]), ModelMismatch, "'v'"),
        ("FinishInitialization", pb.FinishInitializationRequest(table="j/x"), UnknownTable, "'j/x'"),
        (
            "FinishInitialization",
            pb.FinishInitializationRequest(table="j/mine", writer=9999),
            NotRegistered,
            "9999",
        ),
        ("CommitStep", pb.CommitStepRequest(table="j/x"), UnknownTable, "'j/x'"),
        ("CommitStep", pb.CommitStepRequest(table="j/mine", writer=9999), NotRegistered, "9999"),
    ],
)
async def test_what_is_wrong_is_said_and_the_keeper_lives_on(stub, method, request_, error, words):
    mine = await stub.Register(register("mine", "mine"), timeout=10)
    await stub.FinishInitialization(
        pb.FinishInitializationRequest(table="j/mine", writer=mine.writer), timeout=10
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(stub, method)(request_, timeout=5)
    failure = from_rpc_error(caught.value)
    assert isinstance(failure, error), failure
    assert words in str(failure)
    assert len((await stub.ListModels(pb.ListModelsRequest())).models) >= 1


async def test_a_member_registers_itself_and_in_its_own_job():
    async with servers(1) as made, made.trainer("mine") as runtime:
        mine = runtime.membership.member.incarnation
        async with grpc.aio.insecure_channel(made.address) as channel:
            for claim in ({"job": "default", "member": "other"}, {"job": "other", "member": "mine"}):
                with pytest.raises(grpc.aio.AioRpcError, match="is 'mine' of job 'default'"):
                    await ModelServiceStub(channel).Register(
                        register("net", "r", incarnation=mine, **claim), timeout=5
                    )


async def test_a_service_registers_in_the_job_of_whoever_it_works_for():
    async with servers(1) as made, made.trainer("theirs"):
        join = JoinRequest("pipeline-stage", "stage-0", "", (), 5.0)
        async with Membership.join([made.address], join, Security.plaintext()) as membership:
            mine = membership.member.incarnation
            async with grpc.aio.insecure_channel(made.address) as channel:
                stub = ModelServiceStub(channel)
                claim = {"job": "default", "member": "stage-0", "incarnation": mine}
                await stub.Register(register("net", "r", **claim), timeout=5)
                assert made.keeper.models.find("default/net") is not None
                with pytest.raises(grpc.aio.AioRpcError, match="in job 'ended': it has no members"):
                    await stub.Register(register("net", "s", **claim | {"job": "ended"}), timeout=5)
                with pytest.raises(grpc.aio.AioRpcError, match="is 'stage-0' of job ''"):
                    await stub.Register(register("net", "s", **claim | {"member": "other"}), timeout=5)


class _Certified:
    """The context of a call over TLS."""

    def __init__(self, name: str) -> None:
        self.name = name

    def auth_context(self) -> dict[str, list[bytes]]:
        uri = f"psf://cluster/trainer/{self.name}".encode()
        return {"transport_security_type": [b"ssl"], "x509_subject_alternative_name": [uri]}

    def time_remaining(self) -> float:
        return 5.0


async def test_a_certificate_speaks_only_for_its_own_registrations():
    async with servers(1) as made, grpc.aio.insecure_channel(made.address) as channel:
        reply = await ModelServiceStub(channel).Register(register("net", "r", member="alice"), timeout=5)
        servicer = KeeperServicer(made.keeper)
        leave = pb.LeaveModelRequest(table="j/net", writer=reply.writer, until_step=10**9)
        with pytest.raises(PermissionDenied, match="can't speak for 'alice'"):
            await servicer.LeaveModel(leave, _Certified("bob"))
        with pytest.raises(PermissionDenied, match="can't speak for 'alice'"):
            await servicer.Register(register("net", "x", member="alice"), _Certified("bob"))
        assert made.keeper.models.find("j/net").current().registrations
        leave.until_step = 0
        await servicer.LeaveModel(leave, _Certified("alice"))
        assert not made.keeper.models.find("j/net").current().registrations
