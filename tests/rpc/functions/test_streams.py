"""A stream on the producer's side: how far it runs ahead, errors in their place, owners, ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.functions.streams import Packed, Stream, Streams
from psframework.rpc.values.journey import Journey, Outcome

journeys: list[Journey] = []


async def pack(item: Any) -> Packed:
    journeys.append(Journey())
    return Value(integers=[item]), [bytes(100)], journeys[-1]


async def numbers(n: int, made: list[int], closed: list[bool], fail: bool = False) -> AsyncIterator[int]:
    try:
        for index in range(n):
            made.append(index)
            yield index
        if fail:
            raise ValueError("after them all")
    finally:
        closed.append(True)


def start(streams: Streams, owner: object, items: AsyncIterator[int], stream: Stream) -> int:
    return streams.open(owner, stream, lambda made: made.produce(items, pack, contextlib.nullcontext()))


async def drain(stream: Stream) -> list[int]:
    got: list[int] = []
    while True:
        items, done = await stream.fetch()
        got += [value.integers[0] for value, *_ in items]
        if done:
            return got


async def test_items_come_in_order_and_it_ends() -> None:
    streams, made, closed = Streams(), list[int](), list[bool]()
    stream = Stream()
    number = start(streams, self := object(), numbers(1000, made, closed), stream)
    assert await drain(streams.find(self, number)) == list(range(1000)) and closed == [True]


@pytest.mark.parametrize("bounds", [(10, 0), (0, 10 * 360)])
async def test_it_runs_ahead_only_so_far(bounds: tuple[int, int]) -> None:
    streams, made, closed = Streams(), list[int](), list[bool]()
    stream = Stream(*bounds)
    start(streams, object(), numbers(1000, made, closed), stream)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 8 <= len(made) <= 11 and stream.waiting == len(made)
    assert await drain(stream) == list(range(1000))


async def test_an_error_comes_after_the_items_before_it() -> None:
    streams, stream = Streams(), Stream()
    start(streams, object(), numbers(3, [], [], fail=True), stream)
    items, done = await stream.fetch()
    while len(items) < 3:
        more, done = await stream.fetch()
        items += more
    assert not done
    with pytest.raises(ValueError, match="after them all"):
        await stream.fetch()


async def test_closing_finalizes_the_generator_wherever_it_is() -> None:
    streams, closed = Streams(), list[bool]()
    owner, stranger = object(), object()
    waits_for_room = start(streams, owner, numbers(1000, [], closed), Stream(2))
    never_stepped = start(streams, owner, numbers(1000, [], []), Stream(2))
    with pytest.raises(WireError, match="no stream"):
        streams.find(stranger, waits_for_room)
    streams.close(stranger, waits_for_room)
    streams.close(owner, never_stepped)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(streams) == 1
    streams.close_all_of(owner)
    async with asyncio.timeout(5):
        while not closed:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert len(streams) == 0
    journeys.clear()
    start(streams, owner, numbers(1000, [], closed), Stream(2))
    await asyncio.sleep(0)
    await streams.end()
    assert journeys and {journey.outcome for journey in journeys} == {Outcome.REFUSED}
    assert closed == [True, True]


async def test_two_readers_are_one_too_many() -> None:
    streams, stream = Streams(), Stream()

    async def never() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    start(streams, object(), never(), stream)
    waiting = asyncio.create_task(stream.fetch())
    await asyncio.sleep(0)
    with pytest.raises(WireError, match="one call of NextItems"):
        await stream.fetch()
    waiting.cancel()
    await asyncio.wait({waiting})
    await streams.end()


async def test_the_end_does_not_wait_for_what_goes_on() -> None:
    streams, began, gate = Streams(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> AsyncIterator[int]:
        while not gate.is_set():
            began.set()
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        yield 1

    start(streams, object(), stubborn(), Stream())
    await began.wait()
    async with asyncio.timeout(5):
        await streams.end()
    journeys.clear()
    gate.set()
    async with asyncio.timeout(5):
        while not journeys:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert journeys[0].outcome is Outcome.REFUSED  # what it yields then goes nowhere
