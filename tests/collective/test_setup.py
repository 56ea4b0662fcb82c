"""What ranks do before a group starts: memory handed over, sessions opened, and what that finds out."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from seats import World, soon

from psframework.collective import setup
from psframework.collective.seat import Seat
from psframework.errors import PeerLost, ResourceExhausted
from psframework.membership.view import Member
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.limits import AgentOptions
from psframework.wire.lanes import Lane
from psframework.wire.shm import Segment

APART = AgentOptions(lanes=frozenset({Lane.INLINE, Lane.STRIPED}))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


def put(seats: list[Seat], places: str) -> list[Seat]:
    """Says where they are: letters for machines."""
    for seat in seats:
        for member, place in zip(seat.members, places, strict=True):
            member.place = place
            member.host = place
    return seats


async def prepare(seats: list[Seat], algorithm: str = "") -> list[pb.Ready]:
    spec = pb.GroupSpec(world_size=len(seats), algorithm=algorithm)
    return await asyncio.gather(*(setup.prepare(seat, spec, soon()) for seat in seats))


async def test_all_ranks_of_a_host_map_the_same_memory(world: World) -> None:
    seats = put(await world.group("abc"), "xxx")
    ready = await prepare(seats)
    assert [list(each.local) for each in ready] == [[0, 1, 2], [], []]
    segments = [await seat.segment(0, soon()) for seat in seats]
    segments[0].view(100, 5)[:] = b"hello"
    assert [each.read(100, 5) for each in segments] == [b"hello"] * 3
    for each in segments:
        each.close()
    for name in "bc":  # sessions keep nothing of it
        peer = world.members[name].agent.peer_for("a")
        assert peer is not None
        async with asyncio.timeout(5):
            while peer.segments._received:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_hosts_are_dialled_by_their_leaders(world: World) -> None:
    seats = put(await world.group("abcd"), "xyxy")
    ready = await prepare(seats)
    assert [list(each.local) for each in ready] == [[0, 2], [1, 3], [], []]
    assert [list(each.unreachable) for each in ready] == [[], [], [], []]
    sessions = {name: {peer.info.name for peer in world.members[name].agent.peers} for name in "abcd"}
    assert sessions == {"a": {"b", "c"}, "b": {"a", "d"}, "c": {"a"}, "d": {"b"}}


async def test_who_was_said_to_be_here_and_is_not_is_left_out(world: World) -> None:
    """The same folder may be on two machines; only a descriptor that arrives is proof."""
    for name in "ab":
        await world.hire(name)
    await world.hire("c", options=APART)
    seats = put(await world.group("abc"), "xxx")
    ready = await prepare(seats)
    assert list(ready[0].local) == [0, 1]
    assert list(ready[0].unreachable) == []


async def test_without_memory_each_is_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(nbytes: int) -> Segment:
        raise ResourceExhausted(f"no room for {nbytes} bytes")

    seats = put(await world.group("ab"), "xx")
    await seats[0].reach(1, soon())  # the session has proved that they are on one machine
    monkeypatch.setattr(Segment, "create", create)
    assert [list(each.local) for each in await prepare(seats)] == [[0], []]


async def test_ranks_that_can_not_reach_each_other(world: World) -> None:
    for name in "ab":
        await world.hire(name, listens=False)
    seats = put(await world.group("ab"), "xy")
    for seat in seats:
        for member in seat.members:
            member.listens = ""
    ready = await prepare(seats)
    assert [list(each.unreachable) for each in ready] == [[1], []]
    assert "b has no address to be dialled at" in ready[0].trouble


async def test_a_rank_that_is_lost_meanwhile_ends_it(world: World) -> None:
    seats = put(await world.group("ab"), "xx")
    await world.members["b"].agent.close()
    world.book.known.pop("b")
    working = asyncio.ensure_future(prepare(seats[:1]))
    await asyncio.sleep(0)
    seats[0].lose(1, PeerLost("b was declared dead", reason="lease"))
    with pytest.raises(PeerLost, match="b"):
        await working


async def test_more_memory_for_all_or_for_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seats = put(await world.group("ab"), "xx")
    assert await setup.share(seats[0], 1, [0, 1], soon(), 5000) == [0, 1]
    for seat in seats:
        segment = await seat.segment(1, soon())
        assert segment.nbytes == 5000
        segment.close()
    waits = asyncio.ensure_future(seats[1].segment(2, soon()))
    await setup.withhold(seats[0], 2, [0, 1], soon())
    for waiting in (waits, seats[0].segment(2, soon())):
        with pytest.raises(ResourceExhausted, match="share no more memory"):
            await waiting


def test_a_place_is_that_of_the_sockets(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    places = [setup.place(str(folder / "socket")) for folder in (here, there, here)]
    assert places[0] == places[2] != places[1]
    assert all(places)
    link = tmp_path / "mounted"
    link.symlink_to(here)
    assert setup.place(str(link / "other")) == places[0]  # as a volume is, at two paths
    assert setup.place("") == setup.place(str(tmp_path / "missing" / "socket")) == ""


def test_what_a_member_writes_down(tmp_path: Path) -> None:
    member = Member("t-0", "trainer", "j", 7, labels={"host": "h"})
    made = setup.candidate(member, "*", str(tmp_path / "socket"), pb.GroupSpec(world_size=2), 3)
    assert (made.name, made.incarnation, made.ticket, made.host, made.listens) == ("t-0", 7, 3, "h", "*")
    assert made.place == setup.place(str(tmp_path / "socket"))
    assert not made.HasField("rank")
    assert 1 <= setup.cores() <= (os.cpu_count() or 1)
