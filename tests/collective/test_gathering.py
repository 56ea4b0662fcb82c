"""One attempt to get into a group, from the first key to the start, and every way in which it can end."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from group_clusters import Clusters, clusters, until

import psframework as psf
from psframework.collective import gathering, setup, transports
from psframework.collective.desk import Desk
from psframework.collective.options import GroupOptions
from psframework.collective.seat import Seat
from psframework.errors import (
    ConfigurationError,
    DeadlineExceeded,
    PeerLost,
    RendezvousTimeout,
    ResourceExhausted,
)
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline


@pytest.fixture
async def world() -> AsyncIterator[Clusters]:
    async with clusters() as world:
        yield world


def asked(members: list[psf.Cluster], size: int, name: str = "g") -> list[asyncio.Future[psf.ProcessGroup]]:
    return [asyncio.ensure_future(each.process_group(name, size)) for each in members]


async def candidates(world: Clusters, count: int) -> None:
    await until(lambda: sum(not key.endswith("/record") for key in world.stored()) == count)


async def nothing_is_left(world: Clusters) -> None:
    """Only the record, and no seats."""
    await until(lambda: all(key.endswith("/record") for key in world.stored()))
    for each in world.members.values():
        assert each.groups._gathering == {}
        assert each.groups._seats == {}


async def test_they_wait_for_the_last(world: Clusters) -> None:
    members = await world.join("a", "b", "c")
    first = asked(members[:2], 3)
    await candidates(world, 2)
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in first)
    groups = await asyncio.gather(*first, *asked(members[2:], 3))
    assert [each.members for each in groups] == [("a", "b", "c")] * 3
    await until(lambda: world.stored() == ["group/default/g/record"])


async def test_who_gives_up_is_not_counted(world: Clusters) -> None:
    members = await world.join("a", "b", "c")
    first, second = asked(members[:2], 3)
    await candidates(world, 2)
    first.cancel()
    await candidates(world, 1)
    (third,) = asked(members[2:], 3)
    (again,) = asked(members[:1], 3)
    groups = await asyncio.gather(again, second, third)
    assert [each.generation for each in groups] == [1, 1, 1]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_who_gives_up_while_the_coordinator_is_away_is_not_counted_either(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = await world.join("a", "b", "c")
    first, second = asked(members[:2], 3)
    await candidates(world, 2)
    give_up, seconds = Desk.give_up, []

    async def away(self: Desk, candidate: Any, error: Any, *more: float) -> None:
        seconds.append(more)
        if len(seconds) == 1:
            raise DeadlineExceeded("no coordinator answers")
        await give_up(self, candidate, error, *more)

    monkeypatch.setattr(Desk, "give_up", away)
    first.cancel()
    await candidates(world, 1)
    assert seconds == [(), (gathering.LATER_SECONDS,)]
    monkeypatch.undo()
    (third,) = asked(members[2:], 3)
    (again,) = asked(members[:1], 3)
    groups = await asyncio.gather(again, second, third)
    assert [each.generation for each in groups] == [1, 1, 1]


async def test_a_member_that_dies_before_the_seal_is_not_counted(world: Clusters) -> None:
    a, b, c = await world.join("a", "b", "c")
    first, _dies = asked([a, b], 3)
    await candidates(world, 2)
    await b.shutdown(graceful=False)
    await until(lambda: c.membership.find("b") is None)
    (third,) = asked([c], 3)
    (d,) = await world.join("d")
    (fourth,) = asked([d], 3)
    groups = await asyncio.gather(first, third, fourth)
    assert [each.members for each in groups] == [("a", "c", "d")] * 3
    await until(lambda: world.stored() == ["group/default/g/record"])  # b's candidate too


async def test_the_deadline_is_that_of_each(world: Clusters) -> None:
    (patient,) = await world.join("patient")
    (hasty,) = await world.join("hasty", timeout=0.5)
    waits, gives_up = asked([patient, hasty], 3)
    with pytest.raises(
        RendezvousTimeout, match=r"2 of 3 members came within 0\.[45]\d* s: hasty, patient; 1 did not"
    ):
        await gives_up
    assert not waits.done()
    waits.cancel()
    await nothing_is_left(world)


async def failing(seat: Seat, *_: object, **__: object) -> Any:
    if seat.rank == 1:
        raise ResourceExhausted("no memory on rank 1")
    return await PREPARE(seat, pb.GroupSpec(), Deadline.after(10))


PREPARE = setup.prepare


async def test_what_fails_on_one_fails_on_all(world: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    members = await world.join("a", "b", "c")
    monkeypatch.setattr(setup, "prepare", failing)
    for each in asked(members, 3):
        with pytest.raises(ResourceExhausted, match="no memory on rank 1"):
            await asyncio.wait_for(each, 5)
    await nothing_is_left(world)
    monkeypatch.setattr(setup, "prepare", PREPARE)
    groups = await asyncio.gather(*asked(members, 3))
    assert {each.generation for each in groups} == {2}


BUILD = transports.build


async def test_what_fails_after_the_start_too(world: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank can't make its transport; the others have one, and hear that it is of no use."""

    async def build(seat: Seat, start: pb.Start, *more: Any) -> Any:
        if seat.rank == 1:
            raise ResourceExhausted("no transport on rank 1")
        return await BUILD(seat, start, *more)

    members = await world.join("a", "b", "c")
    monkeypatch.setattr(transports, "build", build)
    first, second, third = asked(members, 3)
    with pytest.raises(ResourceExhausted, match="no transport on rank 1"):
        await second
    for each in (first, third):
        with pytest.raises(ResourceExhausted, match="no transport on rank 1"):
            await asyncio.wait_for((await each).barrier(), 5)


async def test_what_rank_0_finds_impossible_is_an_error_on_all(world: Clusters) -> None:
    members = await world.join("a", "b")
    for each in [asyncio.ensure_future(one.process_group("g", 2, algorithm="central")) for one in members]:
        with pytest.raises(ConfigurationError, match="needs an allreduce service"):
            await each
    await nothing_is_left(world)


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_member_that_dies_in_the_set_up_ends_it(
    world: Clusters, monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    members = await world.join("a", "b", "c")
    begun: set[int] = set()

    async def never(seat: Seat, *_: object) -> Any:
        begun.add(seat.rank)
        await asyncio.Event().wait()

    monkeypatch.setattr(setup, "prepare", never)
    making = asked(members, 3)
    await until(lambda: len(begun) == 3)
    dead = members[victim]
    for each in members:
        if each is not dead:
            each.groups.lost(SimpleNamespace(incarnation=dead.membership.member.incarnation), "lease")
    for rank, making_one in enumerate(making):
        if rank != victim:
            with pytest.raises(
                PeerLost, match=rf"rank {victim} \({dead.name}\) of group 'g' is gone"
            ) as lost:
                await asyncio.wait_for(making_one, 5)
            assert lost.value.rank == victim


async def test_one_that_is_cancelled_in_the_set_up_may_ask_again(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await world.join("a", "b")
    begun: set[int] = set()

    async def never(seat: Seat, *_: object) -> Any:
        begun.add(seat.rank)
        await asyncio.Event().wait()

    monkeypatch.setattr(setup, "prepare", never)
    first, second = asked([a, b], 2)
    await until(lambda: len(begun) == 2)
    second.cancel()
    await candidates(world, 1)  # the other one asks anew
    assert not first.done()
    monkeypatch.setattr(setup, "prepare", PREPARE)
    (again,) = asked([b], 2)
    groups = await asyncio.wait_for(asyncio.gather(first, again), 10)
    assert [(each.members, each.generation) for each in groups] == [(("a", "b"), 2)] * 2
    assert await asyncio.gather(*(each.barrier() for each in groups)) == [None, None]


async def test_one_that_is_cancelled_in_the_set_up_is_waited_for_until_the_deadline(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,), (b,) = await world.join("a", timeout=0.5), await world.join("b")
    begun: set[int] = set()

    async def never(seat: Seat, *_: object) -> Any:
        begun.add(seat.rank)
        await asyncio.Event().wait()

    monkeypatch.setattr(setup, "prepare", never)
    first, second = asked([a, b], 2)
    await until(lambda: len(begun) == 2)
    second.cancel()
    with pytest.raises(RendezvousTimeout, match="1 of 2 members came"):
        await asyncio.wait_for(first, 5)
    await nothing_is_left(world)


async def test_survivors_that_are_cancelled_while_they_shrink_may_ask_again(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs, lost = await world.group("g", await world.join("a", "b", "c"))
    lose(world, mine, 2)
    await lost.close()
    begun: set[int] = set()

    async def never(seat: Seat, *_: object) -> Any:
        begun.add(seat.rank)
        await asyncio.Event().wait()

    monkeypatch.setattr(setup, "prepare", never)
    first, second = (asyncio.ensure_future(each.shrink()) for each in (mine, theirs))
    await until(lambda: len(begun) == 2)
    first.cancel()
    await until(first.done)
    monkeypatch.setattr(setup, "prepare", PREPARE)
    groups = await asyncio.wait_for(asyncio.gather(mine.shrink(), second), 10)
    assert [each.members for each in groups] == [("a", "b")] * 2


async def test_survivors_make_a_group_of_their_own(world: Clusters) -> None:
    members = await world.join("a", "b", "c", "d")
    groups = await world.group("g", members)
    for _ in range(3):
        await asyncio.gather(*(each.barrier() for each in groups))
    waits = [asyncio.ensure_future(each.barrier()) for each in groups[:3]]
    await members[3].shutdown(graceful=False)
    for each in waits:
        with pytest.raises(PeerLost, match=r"rank 3 \(d\)"):
            await each
    new = await asyncio.gather(*(each.shrink() for each in groups[:3]))
    assert [each.members for each in new] == [("a", "b", "c")] * 3
    assert [(each.rank, each.last_completed, each.generation) for each in new] == [
        (0, 3, 2),
        (1, 3, 2),
        (2, 3, 2),
    ]
    await asyncio.gather(*(each.barrier() for each in new))
    assert [each.last_completed for each in new] == [4, 4, 4]
    assert all(each.closed for each in groups[:3])


async def test_those_that_closed_the_group_are_not_waited_for(world: Clusters) -> None:
    members = await world.join("a", "b", "c")
    groups = await world.group("g", members)
    await groups[1].close()
    await until(lambda: members[0].groups._seat(groups[0]).departed == {1})
    new = await asyncio.gather(groups[0].shrink(), groups[2].shrink())
    assert [each.members for each in new] == [("a", "c")] * 2
    last = await asyncio.gather(*(each.barrier() for each in new))
    assert last == [None, None]


async def test_of_a_group_of_one_survivor(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    mine, theirs = await world.group("g", [a, b])
    await theirs.close()
    await until(lambda: a.groups._seat(mine).departed)
    async with await mine.shrink() as alone:
        assert (alone.size, alone.transport) == (1, "alone")
        await alone.barrier()


def lose(world: Clusters, group: psf.ProcessGroup, rank: int) -> None:
    """All ranks of `group` but that one lose it."""
    dead = world.members[group.members[rank]].membership.member.incarnation
    for each in world.members.values():
        if each.membership.member.incarnation != dead:
            each.groups.lost(SimpleNamespace(incarnation=dead), "lease")


async def test_who_closes_after_a_failure_is_not_waited_for_either(world: Clusters) -> None:
    mine, theirs, lost = await world.group("g", await world.join("a", "b", "c"))
    lose(world, mine, 2)
    await lost.close()
    shrinking = asyncio.ensure_future(mine.shrink(10))
    await candidates(world, 1)
    await asyncio.sleep(0.05)
    assert not shrinking.done()
    await theirs.close()
    assert (await asyncio.wait_for(shrinking, 5)).members == ("a",)


async def test_a_session_that_breaks_in_the_set_up_ends_it(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the member lives, and has nothing to say."""

    async def prepare(seat: Seat, *more: Any) -> Any:
        if seat.rank == 2:
            await asyncio.Event().wait()
        return await PREPARE(seat, *more)

    monkeypatch.setattr(setup, "prepare", prepare)
    making = asked(await world.join("a", "b", "c"), 3)
    await until(lambda: any(seat.rank == 0 for seat in world.members["a"].groups._seats.values()))
    (seat,) = world.members["a"].groups._seats.values()
    await asyncio.sleep(0.1)  # all that there is to do is done
    seat.lose(2, PeerLost("the session broke", peer="c", reason="connection"))
    for each in making:
        with pytest.raises(PeerLost, match=r"rank 2 \(c\) of group 'g' is gone: the session broke"):
            await asyncio.wait_for(each, 5)
    await nothing_is_left(world)


@pytest.mark.parametrize("moment", ["set-up", "close"])
async def test_a_new_group_that_nobody_got_is_closed(
    world: Clusters, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Cancelled at the last moments: the others must not take it for a member."""
    mine, theirs, lost = await world.group("g", await world.join("a", "b", "c"))
    lose(world, mine, 2)
    await lost.close()
    shrinking = asyncio.ensure_future(mine.shrink())
    reached = asyncio.Event()

    async def never(*_: object) -> None:
        if asyncio.current_task() is shrinking and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    if moment == "set-up":
        monkeypatch.setattr(Desk, "__aexit__", never)
    else:
        monkeypatch.setattr(mine, "close", never)
    other = asyncio.ensure_future(theirs.shrink())
    await reached.wait()
    shrinking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shrinking
    monkeypatch.undo()
    new = await other
    with pytest.raises(
        PeerLost, match="a gave the set-up .* ask again" if moment == "set-up" else r"rank 0 \(a\)"
    ):
        await asyncio.wait_for(new.barrier(), 5)
    assert {generation for *_, generation in world.members["a"].groups._seats} <= {mine.generation}


async def test_who_timed_out_is_out(world: Clusters) -> None:
    """At once: another attempt, of anybody, is not put into one group with this one."""
    (a,) = await world.join("a")
    with pytest.raises(RendezvousTimeout):
        await a.groups.open("default", "g", GroupOptions(2), Deadline.after(0.05))
    assert world.stored() == []
