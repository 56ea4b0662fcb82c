"""RemoteService on the wire: stock stubs, malformed requests, descriptions."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import called
import grpc
import numpy as np
import pytest
from crew import Crew, until

from psframework.errors import DeadlineExceeded, ResourceExhausted, WireError
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
from psframework.rpc.functions.execute import ExecuteOptions
from psframework.rpc.functions.remote_service import SERVICE
from psframework.rpc.limits import AgentOptions
from psframework.rpc.session.peer import Peer
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey
from psframework.testing.workers import Worker
from psframework.wire.lanes import parse

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


MIB = 1 << 20


@contextlib.contextmanager
def not_reading(peer: Peer) -> Iterator[None]:
    """What the peer sends is read, but for the other end it looks as if nothing were."""
    session = peer._port.session
    report, consumed = session.report, session.replies.consumed
    session.report = lambda: (*report()[:2], consumed)  # type: ignore[method-assign]
    yield
    del session.report
    session.replies._reported = consumed
    assert peer._port.link is not None
    peer._port.link.report_soon()


@pytest.mark.parametrize("function", [called.fill, called.fill_async])
async def test_results_wait_for_a_slow_reader_in_little_memory(crew: Crew, function: Any) -> None:
    """The window takes 4 of them, and 4 more may wait: the others are not even made."""
    options = AgentOptions(lanes=parse("inline,striped"), window_bytes=4 * MIB, backlog_bytes=64 * MIB)
    limits = ExecuteOptions(threads=2)
    ann = await crew.hire("ann", options=options)
    bob = await crew.hire("bob", options=options, limits=limits)
    assert await ann.remote.rpc_async("bob", called.add, (1, 2)) == 3
    (peer,), (back,) = ann.agent.peers, bob.agent.peers
    called.ran.clear()
    with not_reading(peer):
        first = [ann.remote.rpc_async("bob", function, (MIB,)) for _ in range(8)]
        await until(lambda: len(called.ran) == 8 and back.room.is_full)
        results = first + [ann.remote.rpc_async("bob", function, (MIB,)) for _ in range(40)]
        small = ann.remote.rpc_async("bob", called.add_async, (1, 2))
        await until(lambda: bob.service.executor.running >= 41)
        await asyncio.sleep(0.1)
        assert len(called.ran) <= 12 and not small.done()
    assert [len(array) for array in await asyncio.gather(*results)] == [MIB] * 48
    assert await small == 3
    await until(lambda: back.room.held == 0)


async def test_a_burst_of_sync_functions_stops_when_nobody_takes_the_results(crew: Crew) -> None:
    options = AgentOptions(lanes=parse("inline,striped"), window_bytes=4 * MIB)
    ann = await crew.hire("ann", options=options)
    bob = await crew.hire("bob", options=options, limits=ExecuteOptions(threads=2))
    assert await ann.remote.rpc_async("bob", called.add, (1, 2)) == 3
    called.ran.clear()
    with not_reading(ann.agent.peers[0]):
        results = [ann.remote.rpc_async("bob", called.fill, (MIB,)) for _ in range(300)]
        await until(lambda: bob.agent.peers[0].room.is_full)
        await asyncio.sleep(0.2)
        assert len(called.ran) < 150
        results[-1].cancel()
    assert [len(array) for array in await asyncio.gather(*results[:-1])] == [MIB] * 299
    await until(lambda: bob.agent.peers[0].room.held == 0)


async def test_far_too_many_results_are_refused(crew: Crew) -> None:
    """All of them began before the first was there, so there is nothing to put off."""
    options = AgentOptions(lanes=parse("inline,striped"), window_bytes=4 * MIB, backlog_bytes=16 * MIB)
    ann, bob = await crew.hire("ann", options=options), await crew.hire("bob", options=options)
    assert await ann.remote.rpc_async("bob", called.add, (1, 2)) == 3
    with not_reading(ann.agent.peers[0]):
        results = [ann.remote.rpc_async("bob", called.fill_async, (MIB, 0.3)) for _ in range(100)]
        await until(lambda: bob.service.executor.running == 0 and bob.agent.peers[0].room.is_full)
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, ResourceExhausted) and error.retry_after for error in refused)
    assert "16777216 may" in str(refused[0])
    assert 16 <= len(outcomes) - len(refused) <= 24  # whichever of them ended first
    await until(lambda: bob.agent.peers[0].room.held == 0)


async def test_a_sync_function_that_nobody_waits_for_counts_until_it_has_ended(crew: Crew) -> None:
    limits = ExecuteOptions(threads=2, max_calls=3, max_bytes=3 * MIB)
    ann, bob = await crew.hire("ann"), await crew.hire("bob", limits=limits)
    executor = bob.service.executor
    late = [
        ann.remote.rpc_async("bob", called.wait_for_gate, (np.zeros(MIB, np.uint8),), timeout=0.2)
        for _ in range(3)
    ]
    for call in late:
        with pytest.raises(DeadlineExceeded):
            await call
    await until(lambda: executor.running == 2)  # no thread had taken the third
    assert executor.stats["called.wait_for_gate"].running == 2
    with pytest.raises(ResourceExhausted, match=f"2 calls with {2 * MIB} bytes"):
        await ann.remote.rpc_async("bob", called.add, (np.zeros(2 * MIB, np.uint8),))
    called.gate.set()
    await until(lambda: executor.running == 0)
    assert executor.stats["called.wait_for_gate"].running == 0
    assert await ann.remote.rpc_async("bob", called.echo, (7,)) == 7
