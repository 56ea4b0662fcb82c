"""RemoteService on the wire: stock stubs, malformed requests, descriptions."""

import asyncio
from typing import Any

import called
import grpc
import numpy as np
import pytest
from crew import Crew

from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import (
    DescribeReply,
    DescribeRequest,
    InvokeReply,
    InvokeRequest,
    NextItemsReply,
    NextItemsRequest,
    OpenStreamReply,
    OpenStreamRequest,
    Value,
)
from psframework.proto.v1.remote_pb2_grpc import RemoteServiceStub
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.remote_service import SERVICE
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey
from psframework.testing.workers import Worker

DEADLINE = 5.0


async def ask(crew: Crew, method: str, request: Any, response: Any) -> Any:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    assert bob.address
    await ann.remote.rpc_async("bob", called.add, (1, 2))
    peer = ann.agent.peer_for("bob")
    assert peer is not None
    reply, _ = await peer.call(f"/{SERVICE}/{method}", request, response, deadline=Deadline.after(DEADLINE))
    return reply


async def test_a_stock_stub_can_call_functions(crew: Crew) -> None:
    bob: Worker = await crew.hire("bob")
    async with grpc.aio.insecure_channel(bob.address) as channel:
        stub: Any = RemoteServiceStub(channel)
        journey, array = Journey(), np.arange(10_000.0)
        request = InvokeRequest(
            function="called.add", arguments=arguments.encode_call((array, 1), None, journey)
        )
        request.part_sizes.extend(len(part) for part in journey.parts)
        request.data = b"".join(journey.parts)
        reply: InvokeReply = await stub.Invoke(request, timeout=DEADLINE)
        np.testing.assert_array_equal(arguments.decode(reply.value, [reply.data], Journey()), array + 1)
        request.function = "called.nothing"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Invoke(request, timeout=DEADLINE)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        request.function = "called.add"
        with pytest.raises(grpc.aio.AioRpcError, match="session"):
            await stub.OpenStream(OpenStreamRequest(call=request), timeout=DEADLINE)


@pytest.mark.parametrize("value", [Value(), Value(outline=b"\xff\xff"), Value(outline=bytes(100))])
async def test_arguments_that_are_none(crew: Crew, value: Value) -> None:
    with pytest.raises(WireError):
        await ask(crew, "Invoke", InvokeRequest(function="called.add", arguments=value), InvokeReply)
    assert called.ran == [(1, 2)]


async def test_a_stream_that_is_not_opened_is_counted_out(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    await ann.remote.rpc_async("bob", called.add, (1, 2))
    peer = ann.agent.peer_for("bob")
    assert peer is not None
    request = OpenStreamRequest(call=InvokeRequest(function="called.count", arguments=Value()))
    with pytest.raises(WireError):
        await peer.call(f"/{SERVICE}/OpenStream", request, OpenStreamReply, deadline=Deadline.after(DEADLINE))
    assert bob.service.executor.running == 0


async def test_streams_of_others_are_out_of_reach(crew: Crew) -> None:
    with pytest.raises(WireError, match="no stream 3"):
        await ask(crew, "NextItems", NextItemsRequest(stream=3), NextItemsReply)


async def test_describe(crew: Crew) -> None:
    reply = await ask(crew, "Describe", DescribeRequest(), DescribeReply)
    infos = {info.name: info for info in reply.functions}
    add = infos["called.add"]
    assert (add.kind, add.calls, add.errors, add.running, add.queued) == ("function", 1, 0, 0, 0)
    assert 0 < add.seconds_p50 <= add.seconds_p99 < 5 and add.seconds > 0
    assert infos["called.again"].idempotent and list(infos["called.only_boss"].roles) == ["boss"]
    assert infos["called.count"].kind == "generator" and infos["called.Point"].kind == "class"
    assert reply.threads >= 5 and reply.running == 0


async def test_results_that_change_afterwards_arrive_as_they_were(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    called.kept[:] = 7
    first, second = await asyncio.gather(
        *(ann.remote.rpc_async("bob", called.give_and_change) for _ in range(2))
    )
    assert np.all(first == first[0]) and np.all(second == second[0])
