"""A shard answers a stock stub, and bad input is a typed error after which it lives on."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import grpc
import numpy as np
import pytest

from psframework import nn, optim
from psframework.errors import (
    ArgumentError,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    ResourceExhausted,
    StaleTerm,
    UnknownTable,
    WireError,
)
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.policy import ASP, BSP, policy_spec
from psframework.parameter_server.servicer import ShardServicer
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.proto.v1.parameter_server_pb2_grpc import ParameterServerServiceStub
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.status import from_rpc_error
from psframework.testing.servers import Trainer, servers
from psframework.wire import shm
from psframework.wire.lanes import Lane

TABLE = "default/net"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(np.zeros((16, 20_000), np.float32))  # two partitions
        self.d = nn.Parameter(np.zeros(3, np.float64))


@pytest.fixture(scope="module")
async def running():
    async with servers(1) as made, made.trainer("owner") as runtime:
        model = Net()
        options = {"name": "net", "optimizer": optim.SGD(lr=1.0), "consistency": ASP()}
        async with await open_parameter_server(runtime, model, **options) as ps:
            shard = made.coordinator.view.select("parameter-server", None)[0]
            async with grpc.aio.insecure_channel(shard.addresses[0]) as channel:
                yield ps, ParameterServerServiceStub(channel), runtime, shard, made


async def test_a_stock_stub_pushes_and_pulls(running):
    ps, stub, *_ = running
    sequence = 1000
    for partition in ps._partitions:
        ones = np.ones(partition.size, partition.dtype)
        sequence += 1
        push = pb.PushRequest(
            table=TABLE,
            writer=ps._writer,
            sequence=sequence - 1000,
            step=0,
            partitions=[partition.index],
            data=ones.tobytes(),
        )
        reply = await stub.Push(push)
        assert reply.outcome == pb.OUTCOME_APPLIED
    ps._sequence = len(ps._partitions)
    everything = np.concatenate([np.ones(p.size, p.dtype).view(np.uint8) for p in ps._partitions])
    both = pb.PushPullRequest(
        push=pb.PushRequest(
            table=TABLE,
            writer=ps._writer,
            sequence=ps._sequence + 1,
            partitions=[p.index for p in ps._partitions],
        ),
        pull=pb.PullRequest(table=TABLE, writer=ps._writer, number=50),
        data=everything.tobytes(),
    )
    ps._sequence += 1
    ps._pull_number = 50
    reply = await stub.PushPull(both)
    assert list(reply.pull.partitions) == [p.index for p in ps._partitions]
    assert len(reply.data) == sum(p.nbytes for p in ps._partitions)
    first = ps._partitions[0]
    assert np.all(np.frombuffer(reply.data[: first.nbytes], first.dtype) == -2)
    await ps.pull()


async def test_it_describes_its_tables(running):
    ps, stub, *_ = running
    info = (await stub.ListTables(pb.ListTablesRequest())).tables[0]
    assert info.table == TABLE
    assert info.partitions == len(ps._partitions)
    assert info.parameter_bytes == sum(p.nbytes for p in ps._partitions)


def push(**changes) -> pb.PushRequest:
    return pb.PushRequest(
        **({"table": TABLE, "sequence": 60, "partitions": [2], "data": bytes(64)} | changes)
    )


BAD = [
    ("Push", lambda w: push(table="default/other", writer=w), UnknownTable, "no table 'default/other'"),
    ("Pull", lambda w: pb.PullRequest(table="nobody/x", writer=w), UnknownTable, "no table 'nobody/x'"),
    ("Push", lambda w: push(writer=w + 100), NotRegistered, "not registered with 'default/net'"),
    ("Pull", lambda w: pb.PullRequest(table=TABLE, writer=w + 100), NotRegistered, "not registered"),
    ("Push", lambda w: push(writer=w, data=bytes(63)), WireError, "partition 2 came with 63 bytes"),
    ("Push", lambda w: push(writer=w, data=bytes(20 << 20)), WireError, "partition 2 came with"),
    ("Push", lambda w: push(writer=w, partitions=[77]), WireError, "partition 77 is not on this shard"),
    ("Push", lambda w: push(writer=w, partitions=[0, 2]), WireError, "64 bytes came for partitions of"),
    ("Push", lambda w: push(writer=w, data=b""), WireError, "1 partitions are announced, 0 came"),
    ("Push", lambda w: push(writer=w, compression="zip"), ValueError, "'zip'"),
    ("Push", lambda w: push(writer=w, sequence=10_000), ArgumentError, "ahead"),
    ("Push", lambda w: push(writer=w, place=pb.Place(segment=3)), WireError, "segment 3 was not shared"),
    (
        "PushPull",
        lambda w: pb.PushPullRequest(push=push(writer=w), pull=pb.PullRequest(table="x")),
        WireError,
        "different tables",
    ),
    ("Initialize", lambda w: pb.InitializeRequest(table=TABLE, writer=w), StaleTerm, "does not initialize"),
    ("DropTable", lambda w: pb.DropTableRequest(table=TABLE, term=0), StaleTerm, "term 0"),
    ("PublishRoster", lambda w: pb.PublishRosterRequest(table="x", term=99), UnknownTable, "'x'"),
]


@pytest.mark.parametrize(
    ("method", "make", "error", "words"), BAD, ids=lambda v: v if isinstance(v, str) else ""
)
async def test_bad_input_is_a_typed_error_and_the_shard_lives_on(running, method, make, error, words):
    ps, stub, *_ = running
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(stub, method)(make(ps._writer), timeout=10)
    failure = from_rpc_error(caught.value)
    assert isinstance(failure, error), failure
    assert words in str(failure)
    await ps.pull(timeout=10)


async def test_a_member_can_not_use_another_ones_registration(running):
    ps, _, _, shard, made = running
    async with made.trainer("thief") as other:
        peer = await _connect(other, shard)
        request = pb.PullRequest(table=TABLE, writer=ps._writer)
        with pytest.raises(PermissionDenied, match="'owner', not 'thief'"):
            await peer.call(
                "/psframework.proto.v1.ParameterServerService/Pull",
                request,
                pb.PullReply,
                deadline=Deadline.after(10),
            )


async def test_only_the_coordinator_may_change_tables(running):
    _, _, runtime, shard, _ = running
    peer = await _connect(runtime, shard)
    for method, request in (
        ("CreateTable", pb.CreateTableRequest(table=TABLE)),
        ("DropTable", pb.DropTableRequest(table=TABLE)),
        ("FenceWriter", pb.FenceWriterRequest(table=TABLE)),
    ):
        with pytest.raises(PermissionDenied, match="'coordinator'"):
            await peer.call(
                f"/psframework.proto.v1.ParameterServerService/{method}",
                request,
                pb.DropTableReply,
                deadline=Deadline.after(10),
            )


async def test_without_its_lease_it_serves_nothing():
    servicer = ShardServicer(serving=lambda: False)
    call = Call(PeerInfo("t", "trainer", "", 1), Deadline.after(5))
    with pytest.raises(PeerLost, match="lease ran out") as caught:
        await servicer.pull(pb.PullRequest(table=TABLE), call)
    assert caught.value.reason == "lease"


async def _connect(runtime: Trainer, shard):
    return await runtime.agent.connect(
        shard.addresses,
        name=shard.name,
        role="parameter-server",
        incarnation=shard.incarnation,
        deadline=Deadline.after(10),
    )


@pytest.mark.skipif(not shm.available(), reason="needs Linux")
async def test_without_room_a_push_is_told_to_come_again_and_the_shard_lives_on():
    model_bytes = 4 * 4096
    async with servers(1, memory_limit=2 * model_bytes) as made, made.trainer() as one, made.trainer() as two:

        def opened(runtime: Trainer):
            model = nn.Linear(64, 63, dtype=np.float32)
            options = {"name": "net", "optimizer": optim.SGD(lr=1.0), "consistency": BSP()}
            return model, open_parameter_server(runtime, model, **options)

        m0, opening = opened(one)
        a = await opening
        m1, opening = opened(two)
        b = await opening
        for model in (m0, m1):
            for parameter in model.parameters():
                parameter.grad = np.ones_like(parameter.data)
        await a.push()
        with pytest.raises(ResourceExhausted, match="no room for another gradient") as caught:
            await b.push(timeout=0.3)
        assert caught.value.retry_after > 0
        pushing = asyncio.ensure_future(b.push(timeout=10))
        await a.leave()  # its step was complete, so it waits for b, which still has no room
        made.shards["parameter-server-0"]._limit = None
        await pushing
        await b.pull()
        await a.close()
        await b.close()


class _Arriving:
    """A payload that is not here yet."""

    def __init__(self, data: bytes) -> None:
        self.data, self.here = data, asyncio.Event()

    async def whole(self) -> list[memoryview]:
        await self.here.wait()
        return [memoryview(self.data)]


def creation(number: int) -> pb.CreateTableRequest:
    entry = pb.RosterEntry(slot=0, writer=7, incarnation=1, name="t")
    return pb.CreateTableRequest(
        table=TABLE,
        term=1,
        partitions=[pb.Partition(dtype="float32", size=16)],
        rule=json.dumps(optim.SGD(lr=1.0).rule.spec()),
        policy=json.dumps(policy_spec(ASP())),
        shards=1,
        creation=number,
        roster=pb.Roster(number=1, entries=[entry], initializer=7),
    )


def test_a_rule_that_needs_whole_rows_is_refused():
    request = creation(5)
    request.rule = json.dumps(optim.RowWiseAdagrad().rule.spec())
    servicer = ShardServicer()
    with pytest.raises(ArgumentError, match="rowwise_adagrad needs a whole row at once"):
        servicer.create_table(request, Call(PeerInfo("t", "trainer", "default", 1), Deadline.after(5)))
    assert not servicer._hosts


async def test_first_values_that_come_late_do_not_undo_training():
    servicer, peer = ShardServicer(), PeerInfo("t", "trainer", "default", 1)
    request = creation(5)
    servicer.create_table(request, Call(peer, Deadline.after(5)))
    call = Call(peer, Deadline.after(5), _Arriving(np.zeros(16, np.float32).tobytes()))
    first = pb.InitializeRequest(table=TABLE, writer=7, partitions=[0])
    late = asyncio.ensure_future(servicer.initialize(first, call))
    await asyncio.sleep(0)
    request.roster.number, request.roster.ready = 2, True  # a repetition of it was faster
    await servicer.publish_roster(
        pb.PublishRosterRequest(table=TABLE, term=1, roster=request.roster), Call(peer, Deadline.after(5))
    )
    table = servicer._hosts[TABLE].table
    table.values(0)[...] = 3
    call.payload.here.set()
    with pytest.raises(StaleTerm, match="does not initialize"):
        await late
    assert np.all(table.values(0) == 3)


async def test_a_table_is_not_replaced_by_one_that_was_made_before():
    servicer, call = ShardServicer(), Call(PeerInfo("c", "coordinator", "", 1), Deadline.after(5))
    servicer.create_table(creation(5), call)
    held = servicer._hosts[TABLE]
    with pytest.raises(StaleTerm, match="made anew"):
        servicer.create_table(creation(4), call)
    assert servicer._hosts[TABLE] is held
    servicer.create_table(creation(6), call)
    assert servicer._hosts[TABLE] is not held


async def test_gradients_that_came_over_the_network_count_against_the_memory_too():
    nbytes = 4 * 4096
    lanes = frozenset({Lane.INLINE, Lane.STRIPED})
    async with servers(1, lanes=lanes, memory_limit=2 * nbytes) as made, AsyncExitStack() as stack:
        handles = []
        for _ in range(2):
            model = nn.Linear(64, 63, dtype=np.float32)
            runtime = await stack.enter_async_context(made.trainer())
            options = {"name": "net", "optimizer": optim.SGD(lr=1.0), "consistency": BSP()}
            handles.append(await open_parameter_server(runtime, model, **options))
            for parameter in model.parameters():
                parameter.grad = np.ones_like(parameter.data)
        await handles[0].push()
        with pytest.raises(ResourceExhausted, match="no room for another gradient"):
            await handles[1].push(timeout=0.3)
        made.shards["parameter-server-0"]._limit = None
        await handles[1].push(timeout=10)
        for handle in handles:
            await handle.close()
