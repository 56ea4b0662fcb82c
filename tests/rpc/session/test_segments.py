"""Shared memory of a session: handed over, found by id, reused only when nobody looks at it any more."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import BytesValue, UInt64Value

from psframework.errors import ConfigurationError, NotRegistered, PeerLost, WireError
from psframework.rpc.deadline import Deadline
from psframework.rpc.session.segments import MAX_SEGMENTS, Segments, lend
from psframework.testing.faults import FaultyLink
from psframework.wire import shm
from psframework.wire.lanes import Lane
from psframework.wire.shm import Segment

pytestmark = pytest.mark.skipif(not shm.available(), reason="shared segments need Linux")
MIB = 1 << 20


def test_lent_views_tell_when_the_last_has_died() -> None:
    released: list[int] = []
    views = lend([memoryview(b"abc"), memoryview(b""), memoryview(b"d")], lambda: released.append(1))
    array = np.frombuffer(views[0], np.uint8)
    assert [bytes(view) for view in views] == [b"abc", b"", b"d"]
    del views
    gc.collect()
    assert not released and array[0] == ord("a")
    del array
    assert released == [1]
    lend([memoryview(b"")], lambda: released.append(2))
    assert released == [1, 2]


async def read(office: Any, peer: Any, number: int) -> bytes:
    reply, _ = await peer.call(
        "/test.Desk/Segment", UInt64Value(value=number), BytesValue, deadline=Deadline.after(5)
    )
    return reply.value


async def test_a_shared_segment_is_the_same_memory_on_both_sides(office: Any) -> None:
    peer = await office.peer()
    with Segment.create(4096) as first, Segment.create(4096) as second:
        numbers = [await peer.share(first), await peer.share(second)]
        first.buffer[:4], second.buffer[:4] = b"1111", b"2222"
        assert [await read(office, peer, number) for number in numbers] == [b"1111", b"2222"]
        first.buffer[:4] = b"new!"
        assert await read(office, peer, numbers[0]) == b"new!"
        with pytest.raises(WireError, match="no segment"):
            await read(office, peer, 99)


async def test_a_segment_that_is_needed_no_more_is_let_go(office: Any) -> None:
    peer = await office.peer()
    (back,) = office.agent.peers
    for _ in range(MAX_SEGMENTS + 2):
        with Segment.create(4096) as segment:
            segment.buffer[:4] = b"once"
            number = await peer.share(segment)
            assert await read(office, peer, number) == b"once"
            peer.unshare(number)
    with pytest.raises(WireError, match="no segment"):
        await read(office, peer, number)
    assert not back.segments._received
    peer.unshare(12345)  # of no consequence
    assert await office.echo(peer, "a") == "a"


async def test_segments_survive_a_broken_connection(office: Any) -> None:
    async with FaultyLink(office.address) as link:
        peer = await office.peer(link.address)
        with Segment.create(4096) as segment:
            number = await peer.share(segment)
            link.cut()
            segment.buffer[:4] = b"same"
            assert await read(office, peer, number) == b"same"


async def test_without_the_lane_nothing_is_shared(office: Any) -> None:
    peer = await office.peer(options=office.options("inline,striped"))
    with Segment.create(4096) as segment:
        with pytest.raises(ConfigurationError, match="not allowed"):
            await peer.share(segment)
        await peer.close()
        with pytest.raises(PeerLost):
            await peer.share(segment)
        with pytest.raises(ConfigurationError, match="no shared memory"):
            await Segments(MIB).share(segment)


async def test_a_segment_is_shared_under_one_id_once(office: Any) -> None:
    segments = Segments(MIB)
    segments.receive(5, Segment.create(4096))
    with Segment.create(4096) as again, pytest.raises(WireError, match="before"):
        segments.receive(5, again)
    with pytest.raises(WireError):
        segments.views(5, [4090], [7])
    with pytest.raises(WireError):
        segments.views(5, [1 << 63], [1])
    segments.close()


async def test_payload_memory_is_used_again_and_again(office: Any) -> None:
    peer = await office.peer()
    for index in range(30):
        part = bytes([index]) * (3 * MIB)
        _, got = await office.send(peer, "Mirror", [part, b"tail"])
        assert bytes(got[0]) == part and bytes(got[1]) == b"tail"
        del got
    there, here = office.agent.peers[0].segments, peer.segments
    await office.until(lambda: all(arena.is_idle for each in (here, there) for arena in each._arenas))
    assert len(here._arenas) == len(there._arenas) == 1
    assert peer.stats.sent[Lane.SHM].messages == 30 and peer.stats.sent[Lane.STRIPED].messages == 0


async def test_users_who_fill_the_loops_threads_hold_up_no_payload(office: Any) -> None:
    peer, gate = await office.peer(), threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, gate.wait, 30) for _ in range(40)]
    try:
        _, got = await office.send(peer, "Mirror", [bytes(2 * MIB)])
        assert bytes(got[0]) == bytes(2 * MIB)
        assert peer.stats.sent[Lane.SHM].messages == peer.stats.received[Lane.SHM].messages == 1
    finally:
        gate.set()
        await asyncio.gather(*busy)


async def test_replies_in_shared_memory_stay_valid_while_they_are_held(office: Any) -> None:
    peer = await office.peer()
    kept = [(await office.send(peer, "Mirror", [bytes([index]) * MIB]))[1][0] for index in range(8)]
    for index, part in enumerate(kept):
        assert bytes(part) == bytes([index]) * MIB
        assert part.readonly


async def test_a_peer_that_has_died_is_nothing_to_be_warned_of(tmp_path: Path, caplog: Any) -> None:
    """Whoever waits for it hears of its death; that its memory can't be reached is no news."""
    segments = Segments(64 * MIB)
    segments.set_other(str(tmp_path / "gone.sock"), segments.key)
    assert await segments.place([bytes(MIB)], [MIB]) is None
    assert not caplog.records
    segments.close()


async def test_what_does_not_fit_takes_the_striped_lane(office: Any) -> None:
    peer = await office.peer(options=office.options(segment_bytes=20 * MIB))
    await office.send(peer, "Sum", [bytes(30 * MIB)])
    assert peer.stats.sent[Lane.STRIPED].messages == 1
    await office.send(peer, "Sum", [bytes(2 * MIB)])
    assert peer.stats.sent[Lane.SHM].messages == 1
    none = await office.peer(name="none", options=office.options(segment_bytes=0))
    await office.send(none, "Sum", [bytes(2 * MIB)])
    assert none.stats.sent[Lane.STRIPED].messages == 1


async def test_what_a_handler_keeps_of_a_request_stays_as_it_was(office: Any) -> None:
    peer = await office.peer()
    for index in range(4):
        await office.send(peer, "Keep", [bytes([index]) * MIB])
    for index, part in enumerate(office.desk.kept):
        assert bytes(part) == bytes([index]) * MIB
    del part
    office.desk.kept.clear()
    await office.until(lambda: all(arena.is_idle for arena in peer.segments._arenas))


async def test_a_payload_for_a_method_that_is_not_there_is_given_back(office: Any) -> None:
    peer = await office.peer()
    with pytest.raises(NotRegistered):
        await office.send(peer, "Nowhere", [bytes(MIB)])
    await office.until(lambda: all(arena.is_idle for arena in peer.segments._arenas))


async def test_a_cancelled_call_keeps_its_memory_until_the_handler_has_ended(office: Any) -> None:
    peer = await office.peer()
    await office.send(peer, "Sum", [bytes(MIB)])
    call = asyncio.create_task(
        peer.call(
            "/test.Desk/Hold", UInt64Value(), UInt64Value, parts=[bytes(MIB)], deadline=Deadline.after(10)
        )
    )
    await office.until(lambda: office.desk.ran)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not peer.segments._arenas[0].is_idle
    await office.until(lambda: peer.segments._arenas[0].is_idle)
    assert office.desk.cancelled


async def test_cancelled_copies_leave_their_memory_to_others(office: Any) -> None:
    peer = await office.peer()
    (back,) = office.agent.peers
    data = [bytes(40 << 20)]
    for _ in range(4):
        await office.send(peer, "Sum", data)
        task = asyncio.create_task(office.send(peer, "Sum", data))
        await asyncio.sleep(0)  # the copy has begun in its thread
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await office.until(lambda: all(arena.is_idle for arena in peer.segments._arenas))
    assert len(back.segments._received) == 1
