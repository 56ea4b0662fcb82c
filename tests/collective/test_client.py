"""Groups of connections: found by name, ended with what ends them, told of losses."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from group_clusters import Clusters, clusters, until
from structlog.testing import capture_logs

import psframework as psf
from psframework.collective.options import GroupOptions
from psframework.errors import (
    ArgumentError,
    CollectiveMismatch,
    ContextClosed,
    DeadlineExceeded,
    Evicted,
    NotRegistered,
    PeerLost,
)
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline


@pytest.fixture
async def world() -> AsyncIterator[Clusters]:
    async with clusters() as world:
        yield world


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds)


async def test_a_name_that_can_not_be(world: Clusters) -> None:
    (a,) = await world.join("a")
    with pytest.raises(ArgumentError, match="group 'x/y'"):
        await a.process_group("x/y", 1)
    with pytest.raises(ArgumentError, match="world_size="):
        await a.process_group("g")
    assert world.stored() == []


async def test_closing_in_order_logs_nothing(world: Clusters) -> None:
    """Also not what another rank still sends to one that has closed."""
    members = await world.join("a", "b", "c")
    with capture_logs() as lines:
        for number in range(5):
            groups = await world.group(f"g{number}", members, algorithm="direct")
            pending = groups[0].all_reduce(np.ones(100_000 * number))
            message = groups[0].send(np.ones(3), 1)
            await asyncio.gather(*(group.close() for group in groups[1:]))
            with pytest.raises(PeerLost, match="has closed group"):
                await pending
            await asyncio.gather(message, return_exceptions=True)
            await groups[0].close()
    assert not [line for line in lines if line["event"] == "call failed"]


@pytest.mark.parametrize("algorithm", ["shm", "direct", "ring"])
@pytest.mark.parametrize("wrong", [np.ones(4), "no array"], ids=["shape", "no array"])
async def test_all_hear_what_is_wrong_though_each_closes_at_once(
    world: Clusters, algorithm: str, wrong: object
) -> None:
    async def use(group: psf.ProcessGroup) -> None:
        async with group:
            await group.barrier()
            await group.all_reduce(np.ones(3) if group.rank else wrong)

    members = await world.join("a", "b", "c")
    for number in range(5):
        groups = await world.group(f"g{number}", members, algorithm=algorithm)
        errors = await asyncio.gather(*map(use, groups), return_exceptions=True)
        wanted = [CollectiveMismatch if isinstance(wrong, np.ndarray) else ArgumentError]
        assert list(map(type, errors)) == wanted + 2 * [CollectiveMismatch], errors


async def test_who_can_not_do_a_call_does_not_wait_long_for_others(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psframework.collective.group._HEAR_SECONDS", 0.05)
    mine, theirs = await world.group("g", await world.join("a", "b"))
    with pytest.raises(ArgumentError):
        mine.all_reduce("no array")
    await mine.close()
    with pytest.raises(PeerLost, match="rank 0"):
        await theirs.barrier()


async def test_it_is_the_same_while_it_lives(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    first, *_ = await world.group("g", [a, b])
    assert await a.process_group("g", 2) is first
    with pytest.raises(ArgumentError, match="group 'g' is open here, with 2 members"):
        await a.process_group("g", 3)
    await first.close()
    asked = asyncio.ensure_future(a.process_group("g", 2))
    again = await b.process_group("g", 2)  # its own has lost a member: no group to go on with
    assert (await asked).generation == again.generation == 2


async def test_jobs_have_names_of_their_own(world: Clusters) -> None:
    (a,) = await world.join("a", job="one")
    (b,) = await world.join("b", job="two")
    mine, other = await asyncio.gather(a.process_group("g", 1), b.process_group("g", 1))
    assert mine.generation == other.generation == 1
    await until(lambda: world.stored() == ["group/one/g/record", "group/two/g/record"])


async def test_keys_go_with_the_job(world: Clusters) -> None:
    (a,) = await world.join("a", job="short")
    await a.process_group("g", 1)
    await until(lambda: world.stored() == ["group/short/g/record"])
    await a.shutdown()
    assert world.stored() == ["group/short/g/record"]
    world.coordinator._jobs._jobs["short"].ends_at = 0.0  # not in one lease
    await until(lambda: world.stored() == [])


async def test_a_failed_group_is_followed_by_a_new_one(world: Clusters) -> None:
    members = await world.join("a", "b")
    groups = await world.group("g", members)
    error = PeerLost("somebody is gone")
    members[0].groups._seat(groups[0]).abort(error)
    with pytest.raises(PeerLost, match="somebody is gone"):
        await groups[0].barrier()
    await groups[1].close()
    again = await world.group("g", members)
    assert [each.generation for each in again] == [2, 2]
    assert groups[0].closed
    await asyncio.gather(*(each.barrier() for each in again))


@pytest.mark.parametrize("reason", ["lease", "closed", "incarnation", "stalled", "left"])
async def test_a_lost_member_ends_its_groups(world: Clusters, reason: str) -> None:
    a, b, c = await world.join("a", "b", "c")
    with_b, _, _ = await world.group("with-b", [a, b, c])
    without, _ = await world.group("without", [a, c])
    waits = asyncio.ensure_future(with_b.all_reduce(np.ones(3)))
    a.groups.lost(SimpleNamespace(incarnation=b.membership.member.incarnation), reason)
    with pytest.raises(PeerLost, match=r"rank 1 \(b\) of group 'with-b' is gone") as lost:
        await waits
    assert lost.value.rank == 1
    assert lost.value.reason == ("closed" if reason == "left" else reason)
    assert without.error is None
    assert b.groups._seats  # it hears of it by the others
    await until(lambda: c.groups._seat(c_group(c, "with-b")).error is not None)


def c_group(cluster: psf.Cluster, name: str) -> psf.ProcessGroup:
    (found,) = [seat.group for seat in cluster.groups._seats.values() if seat.id.name == name]
    assert found is not None
    return found


async def test_an_evicted_member_has_no_groups(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    mine, _ = await world.group("g", [a, b])
    waits = asyncio.ensure_future(mine.barrier())
    asked = asyncio.ensure_future(a.process_group("other", 2))
    await until(lambda: a.groups._gathering)
    a.groups.evicted(Evicted("a was fenced"))
    for each in (waits, asked):
        with pytest.raises(Evicted, match="a was fenced"):
            await each


async def test_leaving_ends_what_is_made_and_what_is_there(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    mine, theirs = await world.group("g", [a, b])
    asked = asyncio.ensure_future(a.process_group("other", 2))
    await until(lambda: any("/other/" in key for key in world.stored()))
    await a.shutdown()
    with pytest.raises(ContextClosed):
        await asked
    with pytest.raises(ContextClosed):
        await mine.barrier()
    with pytest.raises(ContextClosed):
        await a.process_group("g", 1)
    with pytest.raises(PeerLost, match=r"rank 0 \(a\) has closed group 'g' after operation 0"):
        await theirs.barrier()
    assert world.stored() == ["group/default/g/record"]


async def test_a_group_that_is_whole_is_not_shrunk(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    mine, _ = await world.group("g", [a, b])
    with pytest.raises(ArgumentError, match="has lost nobody"):
        await mine.shrink()
    await mine.close()
    with pytest.raises(ContextClosed, match="closed here"):
        await mine.shrink()


async def test_a_message_for_a_group_that_is_being_made_waits(world: Clusters) -> None:
    (a,) = await world.join("a")
    id = pb.GroupId(job="default", name="g", generation=1)
    with pytest.raises(NotRegistered, match="a is not in generation 1 of group 'g'"):
        await a.groups.find(id, soon())
    asked = asyncio.ensure_future(a.process_group("g", 1))
    await until(lambda: a.groups._gathering)
    seat = await a.groups.find(id, soon())
    group = await asked
    assert seat.group is group
    other = pb.GroupId(job="default", name="g", generation=7)
    with pytest.raises(NotRegistered):
        await a.groups.find(other, soon())
    await group.close()
    with pytest.raises(ContextClosed, match="generation 1 of group 'g' has ended here"):
        await a.groups.find(id, soon())


async def test_one_call_at_a_time_and_each_with_its_own_deadline(world: Clusters) -> None:
    (a,) = await world.join("a")
    first = asyncio.ensure_future(a.process_group("g", 2))
    await until(lambda: a.groups._gathering)
    with pytest.raises(DeadlineExceeded, match="group 'g': another call of this process"):
        await asyncio.wait_for(a.groups.open("default", "g", GroupOptions(2), soon(0.05)), 5)
    assert not first.done()
    id = pb.GroupId(job="default", name="g", generation=7)
    with pytest.raises(DeadlineExceeded, match="generation 7 of group 'g' is not made here yet"):
        await a.groups.find(id, soon(0.05))
    first.cancel()


async def test_an_operation_that_fails_while_the_group_is_closed_is_no_error_of_the_loop(
    world: Clusters,
) -> None:
    (mine,) = await world.group("g", await world.join("a"))
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context))
    try:
        await mine.close()
        mine._failed(PeerLost("b is gone"), False)  # as the thread of an operation says it, a little later
        await asyncio.sleep(0.01)
    finally:
        loop.set_exception_handler(None)
    assert told == []


async def test_others_hear_of_a_closing_that_is_cancelled(world: Clusters) -> None:
    mine, theirs = await world.group("g", await world.join("a", "b"), algorithm="direct")
    waits = asyncio.ensure_future(mine.all_reduce(np.ones(10)))
    post = world.members["b"].groups._seat(theirs).post
    post._sending += 1  # something does not arrive
    closing = asyncio.ensure_future(theirs.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(PeerLost, match=r"rank 1 \(b\) has closed group 'g' after operation 0"):
        await asyncio.wait_for(waits, 5)
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not world.members["b"].groups._seats


async def test_a_later_life_of_a_member_is_no_survivor(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    mine, _ = await world.group("g", [a, b])
    a.groups.evicted(Evicted("a was fenced"))
    await a.membership.rejoin()
    with pytest.raises(Evicted, match="a was evicted, and with it left group 'g'"):
        await mine.shrink(5)


async def test_where_the_others_are(world: Clusters) -> None:
    a, b = await world.join("a", "b")
    mine, theirs = await world.group("g", [a, b])
    await asyncio.gather(mine.barrier(), theirs.barrier())
    waits = asyncio.ensure_future(theirs.all_reduce(np.ones(3)))
    await asyncio.sleep(0.01)
    (found,) = (await a.groups.standings(mine, soon())).items()
    rank, standing = found
    assert (rank, standing.completed, standing.running) == (1, 1, 2)
    assert standing.completed_text == "barrier()"
    assert "all_reduce" in standing.running_text
    await mine.all_reduce(np.ones(3))
    await waits


async def test_names_of_sub_groups_differ_between_splits(world: Clusters) -> None:
    members = await world.join("a", "b")
    groups = await world.group("g", members)
    first = await asyncio.gather(*(each.split(0) for each in groups))
    second = await asyncio.gather(*(each.split(0, -each.rank) for each in groups))
    assert [each and each.name for each in (*first, *second)] == ["g.1.1.0"] * 2 + ["g.1.2.0"] * 2
    assert [each and each.rank for each in (*first, *second)] == [0, 1, 1, 0]
    await asyncio.gather(*(each.close() for each in (*first, *second) if each))
    await until(lambda: world.stored() == ["group/default/g/record"])  # those names are not used again


async def test_among_many_only_those_with_sessions_are_told_and_tell_others(
    world: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psframework.collective.news.EVERYBODY", 1)
    members = await world.join("a", "b", "c")  # b and c have shared memory with a, and no session
    groups = await world.group("g", members)
    seats = [each.groups._seat(group) for each, group in zip(members, groups, strict=True)]
    assert [seat.connected for seat in seats] == [{1, 2}, {0}, {0}]
    members[1].groups.ended(groups[1], PeerLost("somebody"))
    await until(lambda: all(seat.error is not None for seat in seats))
    assert members[1].agent.peer_for("c") is None


@pytest.mark.parametrize("algorithm", ["shm", "direct"])
async def test_users_who_fill_the_threads_of_the_loop_hold_up_nobody(world: Clusters, algorithm: str) -> None:
    members = await world.join("a", "b")
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    over = threading.Event()
    held = asyncio.get_running_loop().run_in_executor(None, over.wait, 60)
    try:
        async with asyncio.timeout(20):
            groups = await world.group("g", members, algorithm=algorithm)
            arrays = [np.full(1 << 20, rank, np.float32) for rank in range(2)]
            await asyncio.gather(*(group.all_reduce(array) for group, array in zip(groups, arrays)))
            assert (arrays[0] == 1).all() and (arrays[1] == 1).all()
            sent = groups[0].send(arrays[0], 1)
            assert ((await groups[1].recv(0)) == 1).all()
            await sent
            if algorithm == "shm":
                await asyncio.gather(*(group.empty(1 << 20) for group in groups))
            await asyncio.gather(*(group.close() for group in groups))
    finally:
        over.set()
        await held
