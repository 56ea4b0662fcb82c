"""One session between two real agents: calls both ways, errors, deadlines, cancellation, no leaks."""

import asyncio
import gc
import zlib
from typing import Any

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import (
    ArgumentError,
    DeadlineExceeded,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    RemoteError,
)
from psframework.proto.v1.call_pb2 import Chunk, Frame
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.service import MethodTable
from psframework.rpc.session import frames
from psframework.rpc.session.calling import Home
from psframework.rpc.session.peer import Peer
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.stream import EARLY
from psframework.wire.lanes import Lane


async def test_what_follows_a_message_with_one_frame_need_not_wait_for_company(office: Any) -> None:
    peer = await office.peer()
    port = peer._port
    for count, alone in ((1, True), (2, False), (0, False), (1, True)):
        session = port.session
        made = [frames.encode_frame(Frame(kind=frames.FREE, call=1)) for _ in range(count)]  # type: ignore[arg-type]
        for _ in peer.receive(frames.encode_batch(session.received + 1, (0, 0, 0), made)):
            pass
        assert port.alone is alone


async def test_calls_are_answered_by_plain_and_async_handlers(office: Any) -> None:
    peer = await office.peer()
    assert await office.echo(peer, "a") == "a"
    assert await office.echo(peer, "b", "EchoLater") == "b"
    answers = await asyncio.gather(*(office.echo(peer, str(i), "EchoLater") for i in range(300)))
    assert answers == [str(i) for i in range(300)]
    assert "connected" in repr(peer) and peer.lost is None


async def test_errors_arrive_as_what_they_are(office: Any) -> None:
    peer = await office.peer()
    with pytest.raises(RemoteError, match="no such thing as x") as caught:
        await office.echo(peer, "x", "Raise")
    assert isinstance(caught.value, ValueError)
    assert "conftest.py" in caught.value.remote_traceback
    with pytest.raises(NotRegistered, match="near"):
        await office.echo(peer, "x", "Ekko")
    with pytest.raises(PermissionDenied, match="worker"):
        await office.echo(peer, "x", "OnlyBoss")
    assert await office.echo(peer, "still there") == "still there"


async def test_a_deadline_ends_the_call_and_the_handler(office: Any) -> None:
    peer = await office.peer()
    with pytest.raises(DeadlineExceeded, match="Hold"):
        await office.echo(peer, "slow", "Hold", seconds=0.1)
    await office.until(lambda: office.desk.cancelled == ["slow"])
    await office.until(lambda: peer.statistics() == {"made": 0, "served": 0, "kept": 0})
    with pytest.raises(DeadlineExceeded, match="before"):
        await office.echo(peer, "x", seconds=0)


async def test_cancelling_the_caller_cancels_the_handler(office: Any) -> None:
    peer = await office.peer()
    task = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await office.until(lambda: office.desk.cancelled == ["x"])
    await office.until(lambda: peer.statistics()["made"] == 0)


async def test_calls_go_both_ways_over_one_stream_to_depth_64(office: Any) -> None:
    agent = await office.client(services=[type(office.desk)()])
    peer = await office.dial(agent)
    text = "ab" * 32
    assert await office.echo(peer, text, "CallBack") == text + "end"
    assert len(office.agent.peers) == 1


async def test_the_acceptor_calls_whoever_dialled(office: Any) -> None:
    desk = type(office.desk)()
    await office.dial(await office.client(name="notebook", services=[desk]))
    back = office.agent.peer_for("notebook")
    assert await office.echo(back, "hello") == "hello"
    assert desk.ran == ["hello"]


async def test_a_thousand_calls_leave_nothing(office: Any) -> None:
    peer = await office.peer()
    parts = [bytes(100)]
    for _ in range(3):
        await office.send(peer, "Mirror", parts)
    await office.until(lambda: office.agent.peers[0].statistics()["kept"] == 0)
    tasks = len(asyncio.all_tasks())
    gc.collect()
    objects = len(gc.get_objects())
    for index in range(1000):
        await office.echo(peer, str(index), "EchoLater")
    await office.send(peer, "Mirror", parts)
    office.desk.ran.clear()
    await office.until(lambda: office.agent.peers[0].statistics() == {"made": 0, "served": 0, "kept": 0})
    assert peer.statistics() == {"made": 0, "served": 0, "kept": 0}
    assert len(asyncio.all_tasks()) == tasks
    gc.collect()
    assert len(gc.get_objects()) - objects < 300


@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm", "inline"])
async def test_payloads_travel_unchanged_on_every_lane(office: Any, lanes: str) -> None:
    peer = await office.peer(options=office.options(lanes))
    parts = [bytes(range(256)) * 1200, b"", b"x" * 70, memoryview(bytearray(3 << 20)).cast("H")]
    wanted = [bytes(part) for part in parts]
    for method in ("Mirror", "MirrorNow", "Stream"):
        reply, got = await office.send(peer, method, parts)
        assert reply.call == 7 and [bytes(part) for part in got] == wanted
    best = Lane(lanes.split(",")[-1])
    assert peer.stats.sent[best].nbytes == 3 * sum(map(len, wanted))
    assert peer.stats.received[best].nbytes == 3 * sum(map(len, wanted))


@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm"])
async def test_on_part_takes_the_parts_of_a_reply(office: Any, lanes: str) -> None:
    peer = await office.peer(options=office.options(lanes))
    parts = [bytes([index]) * 200_000 for index in range(9)]
    got: dict[int, bytes] = {}
    _, rest = await office.send(peer, "Stream", parts, lambda index, view: got.update({index: bytes(view)}))
    assert rest == [] and [got[index] for index in range(9)] == parts

    def refuse(index: int, view: memoryview) -> None:
        raise KeyError(index)

    with pytest.raises(KeyError):
        await office.send(peer, "Stream", parts, refuse)
    assert await office.echo(peer, "fine") == "fine"


async def test_a_payload_that_no_lane_can_take(office: Any) -> None:
    peer = await office.peer(options=office.options("inline"))
    with pytest.raises(ArgumentError, match="striped"):
        await office.send(peer, "Sum", [bytes(40 << 20)])
    strided = memoryview(bytearray(100))[::2]
    with pytest.raises(ArgumentError, match="contiguous"):
        await office.send(peer, "Sum", [strided])


async def test_closing_ends_open_calls_on_both_sides_at_once(office: Any) -> None:
    peer = await office.peer()
    task = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    async with asyncio.timeout(5):
        await peer.close()
    with pytest.raises(PeerLost) as caught:
        await task
    assert caught.value.may_have_run and caught.value.peer == "office"
    await office.until(lambda: office.desk.cancelled == ["x"] and not office.agent.peers)
    with pytest.raises(PeerLost) as later:
        await office.echo(peer, "y")
    assert not later.value.may_have_run


async def test_a_slow_peer_slows_its_callers(small_office: Any) -> None:
    """With a window of 256 KiB, only that much is ever on its way; the rest waits at the callers."""
    office = small_office
    peer = await office.peer()
    tasks = [asyncio.create_task(office.echo(peer, "x" * 10_000, "Hold")) for _ in range(100)]
    await office.until(lambda: len(office.desk.ran) >= 25)
    with pytest.raises(DeadlineExceeded):  # a small one waits behind them
        await office.echo(peer, "late", seconds=0.05)
    assert len(office.desk.ran) == 256 * 1024 // (10_000 + 4 + 128)
    office.desk.gate.set()
    assert await asyncio.gather(*tasks) == ["x" * 10_000] * 100


async def test_a_call_that_waits_for_the_window_can_be_cancelled(small_office: Any) -> None:
    office = small_office
    peer = await office.peer()
    first = asyncio.create_task(office.send(peer, "Sum", [bytes(60_000)] * 5))
    holding = asyncio.create_task(office.echo(peer, "x" * 250_000, "Hold"))
    await first
    await office.desk.started.wait()
    with pytest.raises(DeadlineExceeded):
        await office.echo(peer, "y" * 20_000, seconds=0.05)
    office.desk.gate.set()
    await holding
    assert office.desk.ran == ["x" * 250_000]
    assert peer.statistics()["made"] == 0


async def test_a_request_that_is_too_large_for_a_header(office: Any) -> None:
    peer = await office.peer()
    with pytest.raises(ArgumentError, match="parts"):
        await peer.call(
            "/test.Desk/Echo", StringValue(value="x" * (40 << 20)), StringValue, deadline=Deadline.after(5)
        )


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("calls", "nbytes", "lanes"),
    [(100_000, 0, "inline"), (10_000, 1 << 20, "inline,striped"), (10_000, 1 << 20, "inline,striped,shm")],
)
async def test_memory_stays_flat(office: Any, calls: int, nbytes: int, lanes: str) -> None:
    peer = await office.peer(options=office.options(lanes))
    part = bytes(nbytes)

    async def some(count: int) -> None:
        if nbytes:
            await asyncio.gather(*(office.send(peer, "Mirror", [part]) for _ in range(count)))
        else:
            await asyncio.gather(*(office.echo(peer, "x", "EchoLater") for _ in range(count)))
        office.desk.ran.clear()

    for _ in range(calls // 80):
        await some(20)
    before = resident()
    for _ in range(calls // 80, calls // 20):
        await some(20)
    assert resident() - before < 24 << 20


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm"])
async def test_more_than_2_gib_arrives_with_its_checksum(office: Any, lanes: str) -> None:
    peer = await office.peer(options=office.options(lanes, segment_bytes=8 << 30))
    part = np.arange(2_200_000_000 // 8, dtype=np.uint64).view(np.uint8)
    got: list[int] = []
    await peer.call(
        "/test.Desk/Stream",
        Chunk(),
        Chunk,
        parts=[memoryview(part)],
        deadline=Deadline.after(200),
        on_part=lambda index, view: got.append(zlib.crc32(view)),
    )
    assert got == [zlib.crc32(memoryview(part))]


async def test_calls_do_not_wait_behind_one_that_gave_up(small_office: Any) -> None:
    office = small_office
    peer = await office.peer(options=office.options("inline"))
    holding = asyncio.create_task(office.echo(peer, "x" * 200_000, "Hold"))
    await office.desk.started.wait()
    with pytest.raises(DeadlineExceeded):
        await office.echo(peer, "y" * 100_000, seconds=0.05)
    assert await office.echo(peer, "small", seconds=2) == "small"
    office.desk.gate.set()
    await holding


async def test_a_peer_that_is_lost_while_a_payload_is_copied(office: Any) -> None:
    agent = await office.client()
    peer = await office.dial(agent)
    call = asyncio.create_task(
        peer.call("/test.Desk/Sum", Chunk(), Chunk, parts=[bytes(8 << 20)], deadline=Deadline.NEVER)
    )
    await asyncio.sleep(0)
    agent.lost("office", peer.info.incarnation)
    async with asyncio.timeout(5):
        with pytest.raises(PeerLost) as caught:
            await call
    assert not caught.value.may_have_run


@pytest.mark.parametrize("lanes", ["inline", "inline,striped", "inline,striped,shm"])
@pytest.mark.parametrize("error", [StopIteration(1), asyncio.CancelledError(), KeyError("x")])
async def test_what_on_part_raises_ends_its_call_only(office: Any, lanes: str, error: BaseException) -> None:
    peer = await office.peer(options=office.options(lanes))

    def refuse(index: int, view: memoryview) -> None:
        raise error

    both = (office.send(peer, "Mirror", [bytes(100_000)], refuse), office.echo(peer, "a", "EchoLater"))
    async with asyncio.timeout(5):
        failed, other = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(failed, RuntimeError | KeyError) and other == "a"
    await office.until(lambda: peer.statistics() == {"made": 0, "served": 0, "kept": 0})
    assert peer.lost is None


async def test_what_was_not_taken_of_a_long_message_is_not_acknowledged() -> None:
    options = AgentOptions()
    home, segments = Home(options, MethodTable()), Segments(options.segment_bytes)
    peer = Peer(PeerInfo("other", "worker", "", 1), home, segments, lambda peer: None)
    count = 2 * EARLY + 3
    frame = frames.encode_frame(Frame(kind=frames.CANCEL, call=1))  # type: ignore[arg-type]
    message = frames.encode_batch(1, (0, 0, 0), [frame] * count)
    taking = peer.receive(message)
    next(taking)
    taking.close()  # the connection ends
    assert peer.state().received == EARLY and peer.lost is None
    assert len(list(peer.receive(message))) == 2  # it comes again
    assert peer.state().received == count
