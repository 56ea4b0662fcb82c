"""Payloads of replies that are made part by part: they wait for room, break off, or are given up."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from psframework.errors import ArgumentError
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.session import frames
from psframework.rpc.session.bulk import BACKLOG, Bulk
from psframework.rpc.session.payload import Sender
from psframework.rpc.session.replies import Replies
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.session import Session
from psframework.rpc.session.stream import Port
from psframework.wire.lanes import Lane
from psframework.wire.memory import BufferPool

MIB = 1 << 20


class Bench:
    def __init__(self, window: int = 1 << 30) -> None:
        self.port = Port(Session(window))
        self.port.lanes = frozenset({Lane.INLINE, Lane.STRIPED})
        self.bulk = Bulk(lambda key: True, 1 << 30, BufferPool())
        self.replies = Replies(self.port, self.bulk, Sender(self.port, Segments(0), BufferPool()))
        self.made = 0
        self.call = Call(PeerInfo("a", "b", "", 1), Deadline.NEVER)

    def stream(self, made: int, announced: int) -> "asyncio.Task[None]":
        async def parts() -> AsyncIterator[tuple[int, bytes]]:
            for index in range(made):
                self.made += 1
                yield index, bytes(MIB)

        self.call.reply_parts(parts(), [MIB] * announced)
        return asyncio.create_task(self.replies.bulk(1, Chunk(), self.call, lambda: None))

    def sent(self) -> list[Any]:
        return [frames.decode_batch(data).frames[0] for data in self.port.session.take()[1]]

    def drain(self) -> int:
        count = 0
        while self.bulk.next_message() is not None:
            count += 1
        return count


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_maker_waits_while_nothing_leaves() -> None:
    bench = Bench()
    task = bench.stream(40, 40)
    await turns()
    assert bench.made == BACKLOG // MIB + 1
    chunks = 0
    while not task.done():
        chunks += bench.drain()
        await turns()
    assert chunks + bench.drain() == 40
    bench.replies.release(1)
    assert bench.bulk.is_idle


async def test_an_iterator_that_ends_early_aborts_the_payload() -> None:
    bench = Bench()
    task = bench.stream(1, 2)
    with pytest.raises(ArgumentError, match="ended before") as caught:
        await task
    bench.replies.error(1, caught.value)
    assert [frame.kind for frame in bench.sent()] == [frames.REPLY, frames.ABORT]
    assert bench.bulk.is_idle


async def test_released_while_it_is_made_nothing_more_is_said() -> None:
    bench = Bench()
    task = bench.stream(40, 40)
    await turns()
    bench.replies.release(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.replies.error(1, ArgumentError("cancelled"))
    assert [frame.kind for frame in bench.sent()] == [frames.REPLY]
    assert bench.bulk.is_idle


async def test_given_up_before_the_window_had_room_it_is_an_ordinary_error() -> None:
    bench = Bench(window=200)
    assert bench.port.session.replies.admit(10)
    task = bench.stream(2, 2)
    await turns()
    assert bench.sent() == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.replies.error(1, ArgumentError("cancelled"))
    bench.port.replies.give_back(10)
    (frame,) = bench.sent()
    assert frame.kind == frames.REPLY and frame.error.type == "ArgumentError"


async def test_parts_must_have_the_sizes_that_were_announced() -> None:
    bench = Bench()

    async def parts() -> AsyncIterator[tuple[int, bytes]]:
        yield 0, b"abc"

    bench.call.reply_parts(parts(), [2])
    with pytest.raises(ArgumentError, match="announced"):
        await bench.replies.bulk(1, Chunk(), bench.call, lambda: None)


async def test_a_reply_that_is_given_up_before_the_window_had_room_never_leaves() -> None:
    bench = Bench(window=10)
    assert bench.replies.plain(1, Chunk())  # goes alone, though it is larger
    assert not bench.replies.plain(2, Chunk())
    waiting = [asyncio.create_task(bench.replies.in_turn(number, Chunk(call=number))) for number in (2, 3)]
    await turns()
    waiting[0].cancel()
    bench.port.replies.give_back(frames.FRAME_COST)  # before the task could hear of it
    await turns()
    assert waiting[0].cancelled() and waiting[1].done()
    assert [frame.call for frame in bench.sent()] == [1, 3]
    assert not bench.port.is_waiting


async def test_a_reply_that_is_given_up_as_it_leaves_has_left() -> None:
    bench = Bench(window=10)
    assert bench.replies.plain(1, Chunk())
    waiting = asyncio.create_task(bench.replies.in_turn(2, Chunk()))
    await turns()
    bench.port.replies.give_back(frames.FRAME_COST)
    waiting.cancel()
    await waiting  # else a second reply would follow
    assert [frame.call for frame in bench.sent()] == [1, 2]
