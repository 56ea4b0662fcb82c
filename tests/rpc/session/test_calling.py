"""`call_nowait`: sent before it returns, in order, with copies of what was passed, never without bound."""

import asyncio
from typing import Any

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import ArgumentError, DeadlineExceeded, PeerLost, ResourceExhausted
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.deadline import Deadline
from psframework.rpc.session.peer import Peer
from psframework.wire.lanes import Lane

LANES = ["inline,striped", "inline,striped,shm"]


def send(peer: Peer, text: str, method: str = "Echo", seconds: float = 10.0) -> asyncio.Future[Any]:
    request = StringValue(value=text)
    future = peer.call_nowait(f"/test.Desk/{method}", request, StringValue, deadline=Deadline.after(seconds))
    request.value = "changed"
    return future


def mirror(peer: Peer, parts: list[Any]) -> asyncio.Future[Any]:
    return peer.call_nowait("/test.Desk/Mirror", Chunk(), Chunk, parts=parts, deadline=Deadline.after(10))


async def test_calls_are_sent_at_once_and_in_order(office: Any) -> None:
    peer = await office.peer()
    futures = [send(peer, str(index)) for index in range(1000)]
    await office.echo(peer, "last")
    assert office.desk.ran == [*map(str, range(1000)), "last"]
    answers = [(await future)[0].value for future in futures]
    assert answers == [str(index) for index in range(1000)]
    assert peer.statistics()["made"] == 0 and peer.kept == 0


@pytest.mark.parametrize("lanes", LANES)
async def test_parts_may_change_at_once(office: Any, lanes: str) -> None:
    peer = await office.peer(options=office.options(lanes))
    for size in (100, 60_000, 1 << 20, 5 << 20):
        array = np.arange(size, dtype=np.uint8)
        wanted = array.tobytes()
        futures = []
        for _ in range(4):  # more than fits a fresh segment: copied privately, and striped
            futures.append(mirror(peer, [array.data, b"bytes are not copied"]))
            array[:] = 0
            array[:] = np.arange(size, dtype=np.uint8)
        array[:] = 0
        for future in futures:
            _, (first, second) = await future
            assert bytes(first) == wanted and bytes(second) == b"bytes are not copied"
    assert peer.kept == 0


async def test_large_parts_go_straight_into_shared_memory(office: Any) -> None:
    peer = await office.peer()
    array = np.ones(4 << 20, np.uint8)
    await mirror(peer, [array.data])  # striped, while memory is being shared
    await office.until(lambda: peer.segments.place_now([memoryview(b"x" * 4096)], [4096]) is not None)
    before = peer.stats.sent[Lane.SHM].messages
    await mirror(peer, [array.data])
    assert peer.stats.sent[Lane.SHM].messages == before + 1


async def test_cancelling_the_future_cancels_the_call(office: Any) -> None:
    peer = await office.peer()
    future = send(peer, "x", "Hold")
    await office.desk.started.wait()
    future.cancel()
    await office.until(lambda: office.desk.cancelled == ["x"])
    await office.until(lambda: peer.statistics()["made"] == 0 and peer.kept == 0)


async def test_errors_come_with_the_future(office: Any) -> None:
    peer = await office.peer()
    with pytest.raises(DeadlineExceeded, match="Hold"):
        await send(peer, "x", "Hold", seconds=0.1)
    with pytest.raises(DeadlineExceeded, match="before"):
        await send(peer, "x", seconds=0)
    with pytest.raises(ValueError, match="no such thing"):
        await send(peer, "x", "Raise")
    with pytest.raises(ArgumentError, match="contiguous"):
        mirror(peer, [np.zeros((4, 4))[:, 0].data])
    with pytest.raises(ArgumentError, match="pass bulk data as parts"):
        send(peer, "x" * (33 << 20))
    open_call = send(peer, "x", "Hold")
    await peer.close()
    with pytest.raises(PeerLost):
        await open_call
    with pytest.raises(PeerLost):
        await send(peer, "late")


async def test_what_waits_for_replies_is_bounded(office: Any) -> None:
    peer = await office.peer(options=office.options("inline,striped", backlog_bytes=1 << 20))
    held = [send(peer, "x", "Hold") for _ in range(1000)]
    refused = send(peer, "y" * 100_000)
    with pytest.raises(ResourceExhausted, match="await some"):
        await refused
    office.desk.gate.set()
    await asyncio.gather(*held)
    assert peer.kept == 0
    await send(peer, "y" * 100_000)


async def test_calls_beyond_the_window_leave_later_in_order(small_office: Any) -> None:
    peer = await small_office.peer(options=small_office.options("inline,striped"))
    part = bytearray(200_000)
    futures = [mirror(peer, [part]) for _ in range(5)]
    last = send(peer, "last")
    assert small_office.desk.ran == []
    await last
    await asyncio.gather(*futures)


async def test_whoever_asked_is_told_that_a_peer_was_lost(office: Any) -> None:
    peer = await office.peer()
    told: list[str] = []
    peer.when_lost(lambda: told.append("a"))
    peer.when_lost(lambda: told.append("b"))()  # taken back
    await peer.close()
    assert told == ["a"]
