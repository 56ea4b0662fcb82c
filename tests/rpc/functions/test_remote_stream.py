"""`rpc_stream`: items in order, slow consumers, early ends, errors, lost peers."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import called
import numpy as np
import pytest
from crew import Crew, until

from psframework.errors import ArgumentError, DeadlineExceeded, NotRegistered, PeerLost
from psframework.rpc.functions.remote_client import Remote
from psframework.rpc.limits import AgentOptions
from psframework.testing.workers import Worker
from psframework.wire.lanes import parse

GENERATORS = [called.count, called.count_async]


async def collect(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


@pytest.mark.parametrize("generator", GENERATORS)
async def test_items_come_in_order(pair: tuple[Remote, Worker], generator: Any) -> None:
    remote, bob = pair
    for to in ("bob", "ann"):
        assert await collect(remote.rpc_stream(to, generator, (700,))) == list(range(700))
        assert await collect(remote.rpc_stream(to, generator, (0,))) == []
    assert len(called.closed) == 4
    await until(lambda: bob.service.executor.running == 0 and not remote.outstanding())


@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm"])
@pytest.mark.parametrize("generator", GENERATORS)
async def test_arrays_arrive_as_they_were_when_yielded(crew: Crew, generator: Any, lanes: str) -> None:
    options = AgentOptions(lanes=parse(lanes))
    ann, _ = await crew.hire("ann", options=options), await crew.hire("bob", options=options)
    for size, n in ((10, 50), (3000, 50), (300_000, 8)):
        items = await collect(ann.remote.rpc_stream("bob", generator, (n, size)))
        assert len(items) == n
        for index, item in enumerate(items):
            np.testing.assert_array_equal(item, np.full(size, index))


@pytest.mark.parametrize("generator", GENERATORS)
async def test_an_error_comes_after_the_items_before_it(pair: tuple[Remote, Worker], generator: Any) -> None:
    remote, _ = pair
    got: list[int] = []

    async def read() -> None:
        got.extend([item async for item in remote.rpc_stream("bob", generator, (300, 0, 300))])
        stream = remote.rpc_stream("bob", generator, (1000, 0, 300))
        for _ in range(300):
            got.append(await anext(stream))  # noqa: PERF401
        await anext(stream)

    with pytest.raises(ValueError, match="item 300"):
        await read()
    assert got == [*range(300), *range(300)] and len(called.closed) == 2


@pytest.mark.parametrize("generator", GENERATORS)
async def test_a_slow_consumer_bounds_the_generator(pair: tuple[Remote, Worker], generator: Any) -> None:
    remote, _ = pair
    stream = remote.rpc_stream("bob", generator, (1000, 100_000))  # 800 kB each
    assert (await anext(stream))[0] == 0
    await asyncio.sleep(0.05)
    assert len(called.ran) < 40
    await stream.aclose()
    await until(lambda: called.closed)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("to", ["bob", "ann"])
async def test_leaving_the_loop_closes_the_generator(
    pair: tuple[Remote, Worker], generator: Any, to: str
) -> None:
    remote, bob = pair
    async for item in remote.rpc_stream(to, generator, (100_000,)):
        if item == 3:
            break
    await until(lambda: called.closed)
    await until(lambda: not remote.outstanding() and bob.service.executor.running == 0)
    async with remote.rpc_stream(to, generator, (100_000,)) as stream:
        await anext(stream)
    await until(lambda: len(called.closed) == 2)
    never_read = remote.rpc_stream(to, generator, (100_000,))
    del never_read
    gc.collect()
    await until(lambda: not remote.outstanding() and bob.service.executor.running == 0)


async def test_what_is_opened_too_late_is_closed(pair: tuple[Remote, Worker]) -> None:
    remote, bob = pair
    await remote.rpc_async("bob", called.add, (1, 2))  # so that the next one leaves at once
    stream = remote.rpc_stream("bob", called.tick, (0.001,))
    opening = stream._remote.opening
    assert opening is not None
    opening.set_exception(DeadlineExceeded("as if it had passed now"))
    with pytest.raises(DeadlineExceeded):
        await anext(stream)
    executor = bob.service.executor
    await until(lambda: "called.tick" in executor.stats)
    await until(lambda: executor.running == 0 and not remote.outstanding())


async def test_a_generator_that_will_not_be_cancelled_is_closed(pair: tuple[Remote, Worker]) -> None:
    remote, bob = pair
    async with remote.rpc_stream("bob", called.stubborn) as stream:
        assert await anext(stream) == 0
    await until(lambda: called.closed == ["stubborn"] and bob.service.executor.running == 0)


async def test_whoever_stops_waiting_may_go_on(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    stream = remote.rpc_stream("bob", called.tick, (0.02,))
    got = []
    while len(got) < 5:
        with contextlib.suppress(TimeoutError):
            got.append(await asyncio.wait_for(anext(stream), 0.007))
    assert got == [0, 1, 2, 3, 4]
    await stream.aclose()
    await until(lambda: called.closed == ["tick"])


async def test_an_item_that_does_not_come(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    stream = remote.rpc_stream("bob", called.tick, (60.0,), timeout=0.1)
    assert await anext(stream) == 0
    with pytest.raises(DeadlineExceeded):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await until(lambda: called.closed == ["tick"])


async def test_what_can_not_be_streamed(pair: tuple[Remote, Worker]) -> None:
    remote, bob = pair
    with pytest.raises(ArgumentError, match="rpc_async"):
        await collect(remote.rpc_stream("bob", called.add, (1, 2)))
    with pytest.raises(NotRegistered):
        await collect(remote.rpc_stream("bob", "called.nothing"))
    with pytest.raises(PeerLost):
        await collect(remote.rpc_stream("nobody", called.count, (1,)))
    await until(lambda: bob.service.executor.running == 0)


async def test_a_lost_consumer_ends_the_generator(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    stream = ann.remote.rpc_stream("bob", called.tick, (0.001,))
    assert await anext(stream) == 0
    bob.agent.lost("ann", ann.agent.identity.incarnation)
    await until(lambda: called.closed == ["tick"])
    await until(lambda: bob.service.executor.running == 0)


async def test_a_lost_producer(crew: Crew) -> None:
    ann, process = await crew.hire("ann"), await crew.process("bob")
    stream = ann.remote.rpc_stream("bob", called.tick, (0.001,))
    assert await anext(stream) == 0
    process.kill()
    with pytest.raises(PeerLost):
        async for _ in stream:
            pass


async def test_the_generator_of_a_stalled_member_is_closed_once_it_is_back(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    stream = ann.remote.rpc_stream("bob", called.count_async, (10_000,))
    assert await anext(stream) == 0
    still = True
    ann.agent.stalled("bob", bob.agent.identity.incarnation, lambda: still)
    with pytest.raises(PeerLost, match="is stalled"):
        await collect(stream)
    assert bob.service.executor.running == 1
    still = False
    await until(lambda: called.closed and bob.service.executor.running == 0)
    assert await ann.remote.rpc_async("bob", called.add, (1, 2)) == 3
    assert not ann.remote.outstanding()
