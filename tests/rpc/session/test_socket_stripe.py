"""Chunks over a socket: received where they belong, in whatever pieces they come, and nowhere else."""

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from psframework.errors import WireError
from psframework.rpc.session import bulk
from psframework.rpc.session.bulk import MOST_SOCKETS, Bulk
from psframework.rpc.session.transfer import Key
from psframework.wire.chunks import CHUNK_BYTES
from psframework.wire.memory import BufferPool

MIB = 1 << 20
REQUEST: Key = (1, False)


class End:
    """One end: what it was given, and whether that was all."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.awaited: set[Key] = set()
        self.pool = BufferPool()
        self.bulk = Bulk(self.awaited.__contains__, 1 << 30, self.pool)
        self.bulk.attach(lambda: None)
        self.came: dict[int, memoryview] = {}
        self.done = asyncio.Event()
        self.running = asyncio.create_task(self.bulk.run_socket(sock))

    def expect(self, sizes: list[int], key: Key = REQUEST) -> None:
        self.bulk.expect(key, sizes, self.came.__setitem__, self.done.set)

    async def stop(self) -> None:
        self.bulk.close()
        await self.running


@asynccontextmanager
async def two() -> AsyncIterator[tuple[End, End]]:
    ends = [End(sock) for sock in socket.socketpair()]
    await asyncio.sleep(0)
    yield ends[0], ends[1]
    for end in ends:
        await end.stop()


@asynccontextmanager
async def one() -> AsyncIterator[tuple[End, socket.socket]]:
    ours, other = socket.socketpair()
    end = End(ours)
    await asyncio.sleep(0)
    with other:
        yield end, other
    await end.stop()


def head(nbytes: int, *, call: int = 1, offset: int = 0, part: int = 0, reply: bool = False) -> bytes:
    return struct.pack("<QQII?3x", call, offset, part, nbytes, reply)


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "sizes", [[5 * MIB + 7], [0, 3, 0], [700_000, 2 * MIB, 1], [10] * 3000, [65, *[1] * 200, 3 * MIB]]
)
async def test_payloads_arrive(sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    async with two() as (left, right):
        right.expect(sizes)
        left.bulk.send(REQUEST, 1, sizes, parts)
        async with asyncio.timeout(10):
            await right.done.wait()
        assert [bytes(right.came[index]) for index in range(len(sizes))] == parts
        assert not right.bulk._receiving


async def test_both_ways_at_once_while_each_is_full() -> None:
    block = os.urandom(24 * MIB)
    async with two() as (left, right):
        for end in (left, right):
            end.expect([len(block)])
            end.bulk.send(REQUEST, 1, [len(block)], [block])
        async with asyncio.timeout(20):
            await left.done.wait()
            await right.done.wait()
        assert bytes(left.came[0]) == bytes(right.came[0]) == block


async def test_other_work_has_its_turn_in_between() -> None:
    async with two() as (left, right):
        right.expect([32 * MIB])
        left.bulk.send(REQUEST, 1, [32 * MIB], [bytes(32 * MIB)])
        turns = 0
        while not right.done.is_set():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 32


async def test_a_chunk_cut_anywhere_lands_in_the_payload_itself() -> None:
    data = os.urandom(100_000)
    async with one() as (end, other):
        end.expect([len(data), 5])
        message = head(len(data)) + data + head(5, part=1) + b"after"
        place = None
        for start in range(0, len(message), 9_999):
            other.send(message[start : start + 9_999])
            await asyncio.sleep(0.001)
            place = place or end.bulk._receiving[REQUEST]._assembly.part(0)
        await until(end.done.is_set)
        assert bytes(end.came[0]) == data == bytes(place or b"") and bytes(end.came[1]) == b"after"


async def test_a_chunk_that_is_ahead_of_its_frame_waits() -> None:
    async with one() as (end, other):
        end.awaited.add(REQUEST)
        other.send(head(3) + b"abc" + head(2, offset=3) + b"de")
        await until(lambda: end.bulk._early)
        assert not end.came
        end.expect([5])
        await until(end.done.is_set)
        assert bytes(end.came[0]) == b"abcde"


async def test_a_frame_that_comes_while_its_chunk_is_looked_at_is_seen() -> None:
    async with one() as (end, other):
        end.awaited.add(REQUEST)
        other.send(head(1) + b"a")
        (stripe,) = end.bulk._sockets
        stripe._readable()  # it begins to wait, in a task that has not run yet
        end.expect([1])
        end.awaited.clear()
        await until(end.done.is_set)
        assert bytes(end.came[0]) == b"a" and not end.bulk._early


async def test_a_loop_that_paused_for_long_still_sees_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FRAME_SECONDS", 0.05)
    async with one() as (end, other):
        end.awaited.add(REQUEST)
        other.send(head(1) + b"a")
        await until(lambda: end.bulk._early)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, end.expect, [1])
        time.sleep(0.08)  # noqa: ASYNC251 - the frame and the end are due in one turn, in this order
        await until(lambda: end.done.is_set() or end.running.done())
        assert bytes(end.came[0]) == b"a"


async def test_a_frame_that_never_comes_ends_the_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FRAME_SECONDS", 0.05)
    async with one() as (end, other):
        end.awaited.add(REQUEST)
        other.send(head(1) + b"a")
        assert "no frame announced" in str(await end.running)


async def test_what_nobody_wants_is_skipped_and_repetitions_do_no_harm() -> None:
    async with one() as (end, other):
        other.send(head(4, call=9) + b"none")
        end.expect([6])
        other.send(head(3) + b"abc" + head(3) + b"xyz" + head(4, offset=2) + b"!def")
        await until(end.done.is_set)
        assert bytes(end.came[0]) == b"abcdef"


async def test_a_payload_forgotten_in_mid_chunk_ends_quietly() -> None:
    async with one() as (end, other):
        end.expect([6])
        other.send(head(6) + b"abc")
        await until(lambda: end.bulk._sockets[0]._arriving)
        end.bulk.forget(REQUEST)
        end.expect([1], (2, False))
        other.send(b"def" + head(1, call=2) + b"z")
        await until(end.done.is_set)
        assert bytes(end.came[0]) == b"z"


async def test_memory_of_a_forgotten_payload_is_not_used_again_while_it_is_written_to() -> None:
    async with one() as (end, other):
        end.expect([100_000])
        other.send(head(100_000) + bytes(10))
        await until(lambda: end.bulk._sockets[0]._arriving)
        end.bulk.forget(REQUEST)
        await asyncio.sleep(0)
        assert end.pool.idle_bytes == 0
        other.send(bytes(99_990))
        await until(lambda: end.pool.idle_bytes)


async def test_nothing_completes_a_payload_whose_bytes_are_still_being_received() -> None:
    async with one() as (end, other):
        end.expect([6])
        other.send(head(6) + b"abc")
        await until(lambda: end.bulk._sockets[0]._arriving)
        ours, second = socket.socketpair()
        ours.setblocking(False)
        with second:
            second.send(head(6) + b"ABCDEF")
            async with asyncio.timeout(5):
                assert isinstance(await end.bulk.run_socket(ours), WireError)
        assert not end.came  # else what was handed over could be overwritten by the first


async def test_a_broken_socket_leaves_its_chunk_to_the_next() -> None:
    async with one() as (end, other):
        end.expect([6])
        other.send(head(6) + b"abc")
        await until(lambda: end.bulk._sockets[0]._arriving)
        other.shutdown(socket.SHUT_RDWR)
        assert isinstance(await end.running, ConnectionError)
        assert end.bulk.states()[0].missing == [0, 6]
        ours, again = socket.socketpair()
        ours.setblocking(False)
        end.running = asyncio.create_task(end.bulk.run_socket(ours))
        with again:
            again.send(head(6) + b"abcdef")
            await until(end.done.is_set)
        assert bytes(end.came[0]) == b"abcdef"


@pytest.mark.parametrize(
    "message",
    [
        head(0),
        head(CHUNK_BYTES + 1),
        head(5, offset=2),
        head(1, part=1),
        head(1, offset=1 << 63),
        b"\xff" * 28,
    ],
)
async def test_nonsense_ends_it_before_anything_is_allocated(message: bytes) -> None:
    async with one() as (end, other):
        end.expect([6])
        end.expect([6], ((1 << 64) - 1, True))
        other.send(message)
        async with asyncio.timeout(5):
            assert isinstance(await end.running, WireError)
        assert end.pool.idle_bytes == 0 and not end.came


async def test_closing_ends_it_without_an_error_and_so_does_too_many() -> None:
    async with one() as (end, other):
        end.bulk.detach()
        assert await end.running is None and other.recv(1) == b""
        end.bulk._sockets = [None] * MOST_SOCKETS  # type: ignore[list-item]
        ours, theirs = socket.socketpair()
        with theirs:
            assert "more than" in str(await end.bulk.run_socket(ours))
        end.bulk._sockets = []
        assert ours.fileno() == -1
