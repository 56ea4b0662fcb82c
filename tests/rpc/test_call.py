"""Payloads as handlers see them: parts as they come, or all of them."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from psframework.errors import ArgumentError, PeerLost, WireError
from psframework.rpc.call import NO_PAYLOAD, Call, Incoming, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.testing.strict_device import strict_devices
from psframework.wire.device_bytes import DeviceBytes

PEER = PeerInfo("a", "worker", "job", 1)


def view(text: bytes) -> memoryview:
    return memoryview(text)


async def test_parts_come_in_order_of_completion() -> None:
    incoming = Incoming([1, 2, 3])
    seen: list[tuple[int, bytes]] = []

    async def read() -> None:
        async for index, part in incoming.parts():
            seen.append((index, bytes(part)))

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    for index, part in ((2, b"ccc"), (0, b"a"), (1, b"bb")):
        incoming.feed(index, view(part))
        await asyncio.sleep(0)
    await task
    assert seen == [(2, b"ccc"), (0, b"a"), (1, b"bb")]


async def test_whole_sorts_the_parts_and_says_when_some_are_gone() -> None:
    incoming = Incoming([1, 1], [view(b"a")])
    incoming.feed(1, view(b"b"))
    assert await incoming.whole() == [b"a", b"b"]
    with pytest.raises(ArgumentError, match="already consumed"):
        await incoming.whole()
    assert await NO_PAYLOAD.whole() == []


async def test_a_lost_peer_ends_the_wait() -> None:
    incoming = Incoming([1, 1], [view(b"a")])
    task = asyncio.create_task(incoming.whole())
    await asyncio.sleep(0)
    incoming.fail(PeerLost("gone"))
    with pytest.raises(PeerLost):
        await task


def test_whole_now_needs_all_parts() -> None:
    incoming = Incoming([1, 1])
    incoming.feed(1, view(b"b"))
    assert incoming.whole_now() is None
    incoming.feed(0, view(b"a"))
    assert incoming.whole_now() == [b"a", b"b"]


async def test_arrived_takes_nothing() -> None:
    incoming = Incoming([1])
    task = asyncio.create_task(incoming.arrived())
    await asyncio.sleep(0)
    assert not task.done()
    incoming.feed(0, view(b"a"))
    await task
    assert incoming.whole_now() == [b"a"]


def test_reply_parts_may_be_on_a_device() -> None:
    with strict_devices("gpu-0") as (gpu,):
        call = Call(PEER, Deadline.NEVER)
        call.reply_parts([DeviceBytes(gpu.to_device(np.zeros((2, 3)))), b"x"])
        assert call.reply_sizes == (48, 1) and gpu.synchronisations == 0


def test_reply_parts_check_their_sizes() -> None:
    call = Call(PEER, Deadline.NEVER)
    call.reply_parts([b"ab", b"c"])
    assert call.reply_sizes == (2, 1)
    with pytest.raises(ArgumentError, match="announced"):
        call.reply_parts([b"ab"], [3])

    async def parts() -> AsyncIterator[tuple[int, bytes]]:
        yield 0, b"a"

    with pytest.raises(ArgumentError, match="sizes"):
        call.reply_parts(parts())
    call.reply_parts(parts(), [1])
    assert call.reply_sizes == (1,)


def test_a_call_holds_its_payload_and_a_large_header() -> None:
    call = Call(PEER, Deadline.NEVER, Incoming([2, 3]))
    assert call.nbytes == 5 and Call(PEER, Deadline.NEVER).nbytes == 0
    call.header_bytes = 10
    assert call.nbytes == 15


def test_a_caller_without_a_session_shares_nothing() -> None:
    with pytest.raises(WireError, match="no session"):
        Call(PEER, Deadline.NEVER).segments(1)


async def test_batches_hold_all_that_is_here() -> None:
    incoming = Incoming([1, 1, 1], [view(b"a")])
    incoming.feed(2, view(b"c"))
    assert not incoming.is_here
    batches = incoming.batches(least=2)
    assert await anext(batches) == [(0, b"a"), (2, b"c")]
    later = asyncio.ensure_future(anext(batches))  # only one is left
    await asyncio.sleep(0)
    incoming.feed(1, view(b"b"))
    assert await later == [(1, b"b")]
    assert incoming.is_here
    assert [batch async for batch in batches] == []


async def test_batches_wait_until_enough_is_here() -> None:
    incoming = Incoming([1, 1, 1], [view(b"a")])
    first = asyncio.ensure_future(anext(incoming.batches(least=2)))
    await asyncio.sleep(0)
    assert not first.done()
    incoming.feed(1, view(b"b"))
    assert await first == [(0, b"a"), (1, b"b")]


async def test_batches_end_with_the_error_of_the_payload() -> None:
    incoming = Incoming([1, 1], [view(b"a")])
    incoming.fail(PeerLost("gone"))
    batches = incoming.batches()
    assert await anext(batches) == [(0, b"a")]
    with pytest.raises(PeerLost):
        await anext(batches)
