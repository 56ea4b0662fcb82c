"""The keeper's calls are repeated until they are answered, the shard is known to be gone, or time is up."""

import asyncio

import grpc
import pytest

from psframework.errors import DeadlineExceeded, StaleTerm, UnknownTable
from psframework.parameter_server.messages import SHARD_SERVICE
from psframework.parameter_server.registry import ShardRef
from psframework.parameter_server.shard_calls import ShardCalls
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.proto.v1.parameter_server_pb2_grpc import (
    ParameterServerServiceServicer,
    add_ParameterServerServiceServicer_to_server,
)
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve


class Shard(ParameterServerServiceServicer):
    def __init__(self) -> None:
        self.failures = 2

    async def DropTable(self, request, context):
        if request.table == "unknown":
            raise UnknownTable("no table 'unknown'")
        if self.failures:
            self.failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return pb.DropTableReply()


@pytest.fixture
async def shard():
    servicers = [(add_ParameterServerServiceServicer_to_server, Shard())]
    security = Security.plaintext()
    options = ServeOptions(announce=False, drain_seconds=0.1)
    async with serve(
        [], servicers=servicers, bind="127.0.0.1:0", security=security, options=options
    ) as server:
        yield ShardRef("parameter-server-0", 1, ("127.0.0.1:1", server.address))


@pytest.fixture
async def calls():
    made = ShardCalls(Security.plaintext())
    yield made
    await made.close()


def drop(calls: ShardCalls, shard: ShardRef, table: str = "t", seconds: float = 10, check=lambda: None):
    request = pb.DropTableRequest(table=table)
    return calls.call(shard, "DropTable", request, pb.DropTableReply, Deadline.after(seconds), check)


async def test_addresses_are_tried_in_turn_until_one_answers(calls, shard):
    assert isinstance(await drop(calls, shard), pb.DropTableReply)


async def test_an_answer_that_is_an_error_is_not_repeated(calls, shard):
    with pytest.raises(UnknownTable, match="'unknown'"):
        await drop(calls, shard, "unknown")


async def test_silence_ends_at_the_deadline_and_names_the_shard(calls):
    gone = ShardRef("parameter-server-7", 1, ("127.0.0.1:1",))
    with pytest.raises(DeadlineExceeded, match="parameter-server-7 did not answer DropTable"):
        await drop(calls, gone, seconds=0.3)
    with pytest.raises(DeadlineExceeded, match="no address"):
        await drop(calls, ShardRef("x", 1), seconds=0.1)


async def test_a_shard_known_to_be_gone_ends_the_call_at_once(calls):
    gone = ShardRef("parameter-server-7", 1, ("127.0.0.1:1",))
    lost = asyncio.Event()

    def check() -> None:
        if lost.is_set():
            raise StaleTerm("it is gone")

    task = asyncio.ensure_future(drop(calls, gone, seconds=30, check=check))
    await asyncio.sleep(0)
    lost.set()
    with pytest.raises(StaleTerm):
        await asyncio.wait_for(task, 10)


def test_the_service_has_the_methods_that_the_keeper_calls():
    names = {m.name for m in pb.DESCRIPTOR.services_by_name[SHARD_SERVICE.rpartition(".")[2]].methods}
    assert {"CreateTable", "PublishRoster", "FenceWriter", "PauseRounds", "DropTable"} <= names
