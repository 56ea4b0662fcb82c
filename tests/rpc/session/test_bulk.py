"""The striped lane between two real agents: early parts, broken connections, memory that comes back."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from psframework.errors import DeadlineExceeded, PeerLost
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.deadline import Deadline
from psframework.rpc.session.bulk import Bulk
from psframework.testing.faults import FaultyLink
from psframework.wire.lanes import Lane
from psframework.wire.memory import BufferPool

MIB = 1 << 20


@pytest.fixture
async def link(office: Any) -> AsyncIterator[FaultyLink]:
    async with FaultyLink(office.address) as proxy:
        yield proxy


async def striped(office: Any, address: str = "") -> Any:
    return await office.peer(address, options=office.options("inline,striped"))


async def test_a_handler_sees_parts_while_the_rest_is_on_its_way(office: Any, link: FaultyLink) -> None:
    peer = await striped(office, link.address)
    link.after(6 * MIB, link.blackhole)
    call = asyncio.create_task(office.send(peer, "Sum", [bytes(MIB)] * 24))
    await office.desk.started.wait()
    await office.until(lambda: not link.flowing)
    assert 0 < len(office.desk.seen_parts) < 24 and not call.done()
    link.heal()
    reply, _ = await call
    assert reply.part == 24 and sorted(office.desk.seen_parts) == [(index, MIB) for index in range(24)]


@pytest.mark.parametrize("method", ["Mirror", "Stream"])
@pytest.mark.parametrize("cuts", [(3 * MIB, 5 * MIB), (11 * MIB, 3 * MIB), (200_000, 17 * MIB)])
async def test_a_transfer_goes_on_where_the_connection_broke(
    office: Any, link: FaultyLink, method: str, cuts: tuple[int, ...]
) -> None:
    chance = random.Random(5)
    parts = [chance.randbytes(size) for size in (MIB, 5 * MIB + 3, 10, 0, 2 * MIB, 900_000)]
    peer = await striped(office, link.address)
    link.after(cuts[0], link.cut)
    link.after(sum(cuts), link.cut)
    _, got = await office.send(peer, method, parts)
    assert [bytes(part) for part in got] == parts
    assert link.accepted >= 2
    assert link.passed < 2 * sum(map(len, parts)) + 24 * MIB  # it did not begin anew each time
    await office.until(lambda: office.agent.peers[0].bulk.is_idle and peer.bulk.is_idle)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_reset_is_noticed_on_a_busy_machine(office: Any) -> None:
    """gRPC's poller misses one now and then, with both cores busy; a ping finds out within a second or so."""
    spin = (sys.executable, "-c", "while True: pass")
    burners = [await asyncio.create_subprocess_exec(*spin) for _ in range(os.cpu_count() or 1)]
    parts = [bytes([index]) * MIB for index in range(9)]
    try:
        for _ in range(100):
            async with FaultyLink(office.address) as link:
                peer = await striped(office, link.address)
                link.after(3 * MIB, link.cut)
                link.after(8 * MIB, link.cut)
                async with asyncio.timeout(5):
                    _, got = await office.send(peer, "Mirror", parts)
                assert [bytes(part) for part in got] == parts
                await peer.close()
    finally:
        for burner in burners:
            burner.kill()
            await burner.wait()


class Silent:
    """A stream on which nothing comes; writes are counted."""

    def __init__(self) -> None:
        self.written = 0

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, _: bytes) -> None:
        self.written += 1


async def test_a_stripe_that_outlived_its_connection_takes_no_chunk_of_the_next() -> None:
    bulk = Bulk(lambda key: False, 1 << 30, BufferPool())
    bulk.attach(lambda: None)
    bulk.detach()
    late = Silent()
    stripe = asyncio.create_task(bulk.run_stripe(late))  # its first chunk was read too late
    await asyncio.sleep(0.01)
    bulk.attach(lambda: None)
    bulk.send((1, False), 1, [3], [b"abc"])
    assert await stripe is None and late.written == 0
    assert bulk.next_message() is not None


async def test_cancelling_frees_both_ends(office: Any, link: FaultyLink) -> None:
    peer = await striped(office, link.address)
    link.after(3 * MIB, link.blackhole)
    call = asyncio.create_task(office.send(peer, "Sum", [bytes(MIB)] * 30))
    await office.desk.started.wait()
    await office.until(lambda: not link.flowing)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    link.heal()
    await office.until(lambda: peer.statistics()["made"] == 0)
    await office.until(lambda: office.agent.peers[0].bulk.is_idle and peer.bulk.is_idle)
    assert await office.echo(peer, "fine") == "fine"


async def test_a_deadline_in_the_middle_of_a_reply(office: Any, link: FaultyLink) -> None:
    peer = await striped(office, link.address)
    seen = asyncio.Event()
    link.after(14 * MIB, link.blackhole)
    call = asyncio.create_task(
        peer.call(
            "/test.Desk/Stream",
            Chunk(),
            Chunk,
            parts=[bytes(MIB)] * 12,
            deadline=Deadline.after(0.5),
            on_part=lambda index, view: seen.set(),
        )
    )
    await seen.wait()
    await office.until(lambda: not link.flowing)
    with pytest.raises(DeadlineExceeded):
        await call
    link.heal()
    await office.until(lambda: office.agent.peers[0].bulk.is_idle and peer.bulk.is_idle)
    await office.until(lambda: office.agent.peers[0].statistics()["served"] == 0)
    assert await office.echo(peer, "fine") == "fine"


async def test_a_payload_that_breaks_off_fails_only_its_call(office: Any) -> None:
    peer = await striped(office)
    with pytest.raises(KeyError, match="second part"):
        await office.send(peer, "BreakOff", [])
    await office.until(lambda: office.agent.peers[0].bulk.is_idle and peer.bulk.is_idle)
    assert await office.echo(peer, "fine") == "fine"


async def test_a_peer_lost_in_the_middle_of_a_transfer(office: Any, link: FaultyLink) -> None:
    peer = await striped(office, link.address)
    link.after(4 * MIB, link.refuse)
    call = asyncio.create_task(office.send(peer, "Sum", [bytes(MIB)] * 30))
    with pytest.raises(PeerLost) as caught:
        await call
    assert caught.value.may_have_run
    await office.until(lambda: not office.agent.peers)


async def test_many_transfers_at_once_both_ways(office: Any) -> None:
    agent = await office.client(services=[type(office.desk)()], options=office.options("inline,striped"))
    there = await office.dial(agent)
    back = office.agent.peer_for("client")
    parts = [os.urandom(300_000 + index) for index in range(5)]
    answers = await asyncio.gather(*(office.send(peer, "Mirror", parts) for peer in (there, back) * 8))
    for _, got in answers:
        assert [bytes(part) for part in got] == parts
    assert there.stats.sent[Lane.STRIPED].messages == 16


async def test_parts_of_a_reply_stay_valid_while_they_are_held(office: Any) -> None:
    """Receive buffers are reused, but never one that somebody still looks at."""
    peer = await striped(office)
    kept = []
    for index in range(6):
        _, got = await office.send(peer, "Mirror", [bytes([index]) * 2 * MIB])
        kept.append(got[0])
    for index, part in enumerate(kept):
        assert bytes(part) == bytes([index]) * 2 * MIB


async def test_the_window_holds_large_payloads_back(small_office: Any) -> None:
    office = small_office
    peer = await striped(office)
    answers = await asyncio.gather(*(office.send(peer, "Mirror", [bytes(MIB)]) for _ in range(20)))
    assert all(len(got[0]) == MIB for _, got in answers)


@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm"])
async def test_calls_that_fill_the_window_and_call_back_end(small_office: Any, lanes: str) -> None:
    """The replies that they wait for don't queue behind the calls that wait for them to end."""
    office = small_office
    options = office.options(lanes, window_bytes=256 * 1024)
    agent = await office.client(services=[type(office.desk)()], options=options)
    there = await office.dial(agent)
    ask, until, parts = "/test.Desk/AskBack", Deadline.after(10), [bytes(MIB)]
    calls = [there.call(ask, Chunk(call=n), Chunk, parts=parts, deadline=until) for n in range(6)]
    assert [reply.call for reply, _ in await asyncio.gather(*calls)] == list(range(6))
