"""The rendezvous of one group in the coordinator's keys."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from group_clusters import Clusters, clusters, until

from psframework.collective import rendezvous
from psframework.collective.desk import Desk
from psframework.errors import DeadlineExceeded, PeerLost
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline


@pytest.fixture
async def world() -> AsyncIterator[Clusters]:
    async with clusters() as world:
        await world.join("a", "b")
        yield world


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds)


def desk(world: Clusters, member: str = "a") -> Desk:
    return Desk(world.members[member].membership.kv, "j", "g")


def candidate(incarnation: int, ticket: int = 1) -> pb.Candidate:
    return pb.Candidate(name=f"t-{incarnation}", incarnation=incarnation, ticket=ticket)


def sealed(*members: pb.Candidate, generation: int = 1) -> pb.Sealed:
    return pb.Sealed(generation=generation, members=members)


async def test_all_see_what_one_writes(world: Clusters) -> None:
    async with desk(world) as mine, desk(world, "b") as theirs:
        await mine.apply(candidate(1), soon())
        await theirs.apply(candidate(2), soon())
        for each in (mine, theirs):
            await each.until(lambda each=each: len(each.candidates) == 2 or None, soon(), "both")  # type: ignore[misc]
            assert [one.name for one in each.candidates] == ["t-1", "t-2"]
        await mine.seal(sealed(candidate(1), candidate(2)), set(), soon())
        assert mine.find((1, 1)) is not None  # whoever wrote it knows at once
        found = await theirs.until(lambda: theirs.find((2, 1)), soon(), "the group")
        assert found.generation == 1
        await mine.withdraw(candidate(1))
        await theirs.until(lambda: len(theirs.candidates) == 1 or None, soon(), "one less")


async def test_of_two_that_seal_at_once_one_does(world: Clusters) -> None:
    async with desk(world) as mine, desk(world, "b") as theirs:
        for each in (mine, theirs):
            await each.apply(candidate(1), soon())
        await asyncio.gather(
            mine.seal(sealed(candidate(1)), set(), soon()), theirs.seal(sealed(candidate(2)), set(), soon())
        )
        assert mine.record == theirs.record  # who came too late has learned
        assert len(mine.record.sealed) == 1


async def test_it_judges_only_by_candidates_that_are_as_new_as_the_record(world: Clusters) -> None:
    async with desk(world) as mine, desk(world, "b") as theirs:
        await mine.apply(candidate(1), soon())
        await theirs.until(lambda: theirs.candidates or None, soon(), "it")
        assert theirs.is_current
        assert mine._watch is not None
        mine._watch.cancel()
        await mine.seal(sealed(candidate(1)), set(), soon())
        assert not mine.is_current  # it wrote the record, and does not hear what else is there
        await theirs.until(lambda: theirs.find((1, 1)), soon(), "the record")
        assert theirs.is_current


async def test_candidates_of_the_dead_are_cleared(world: Clusters) -> None:
    async with desk(world) as mine:
        for incarnation in (1, 2, 3):
            await mine.apply(candidate(incarnation), soon())
        await mine.seal(sealed(candidate(2)), {1}, soon())
        await until(lambda: world.stored() == [f"group/j/g/{key}" for key in ("2", "3", "record")])
        # 2 is known to be dead by the next time: its generation is forgotten with it.
        await mine.seal(sealed(candidate(3), generation=2), {2}, soon())
        assert [each.generation for each in mine.record.sealed] == [2]


async def test_a_generation_fails_once_and_not_after_its_start(world: Clusters) -> None:
    async with desk(world) as mine, desk(world, "b") as theirs:
        await mine.apply(candidate(1), soon())
        await mine.seal(sealed(candidate(1)), set(), soon())
        await theirs.until(lambda: theirs.find((1, 1)), soon(), "it")
        await asyncio.gather(
            mine.fail(1, PeerLost("first"), soon()), theirs.fail(1, PeerLost("second"), soon())
        )
        assert mine.record.sealed[0].error == theirs.record.sealed[0].error
        await mine.fail(77, PeerLost("of no generation"), soon())

        await mine.seal(sealed(candidate(1, 2), generation=2), set(), soon())

        def begin(each: pb.Sealed) -> bool:
            each.start.transport = "shm"
            return True

        await mine.amend(2, begin, soon())
        await mine.fail(2, PeerLost("too late"), soon())
        assert not mine.record.sealed[-1].HasField("error")


async def test_who_gives_up_tells_those_that_count_on_it(world: Clusters) -> None:
    """It was sealed in at the moment at which it gave up, and does not know."""
    mine = desk(world)
    async with desk(world, "b") as theirs:
        await mine.apply(candidate(1), soon())
        await theirs.apply(candidate(2), soon())
        await theirs.seal(sealed(candidate(1), candidate(2)), set(), soon())
        await mine.give_up(candidate(1), PeerLost("t-1 gave up"))
        found = await theirs.until(lambda: theirs.record.sealed[0].HasField("error") or None, soon(), "it")
        assert found
        assert theirs.record.sealed[0].error.message == "t-1 gave up"
        assert [each.name for each in theirs.candidates] == ["t-2"]


async def test_an_attempt_that_is_over_takes_only_itself_away(world: Clusters) -> None:
    """It does so while nobody waits; its process may have made the next attempt by then."""
    async with desk(world) as mine:
        await mine.apply(candidate(1, 2), soon())
        await mine.withdraw(candidate(1, 1))
        await mine.give_up(candidate(1, 1), PeerLost("t-1 gave up"))
        assert world.stored() == ["group/j/g/1"]
        await mine.withdraw(candidate(1, 2))
        await mine.withdraw(candidate(1, 2))
        assert world.stored() == []


async def test_what_is_waited_for_in_vain_is_named(world: Clusters) -> None:
    async with desk(world) as mine:
        with pytest.raises(DeadlineExceeded, match="waited in vain for members of group 'g'"):
            await mine.until(lambda: None, soon(0.05), "members of group 'g'")


async def test_keys_of_others_do_no_harm(world: Clusters) -> None:
    kv = world.members["b"].membership.kv
    await kv.put("group/j/g/12", b"\xff\xff\xff")
    await kv.put("group/j/other/13", candidate(13).SerializeToString())
    async with desk(world) as mine:
        await mine.apply(candidate(1), soon())
        await until(lambda: mine.is_current and mine.candidates)
        assert [each.name for each in mine.candidates] == ["t-1"]
        await kv.put("group/j/g/record", b"\xff")
        await mine.seal(sealed(candidate(1)), set(), soon())
        assert rendezvous.find(mine.record, (1, 1)) is None  # it was not written over what is there
        await mine.withdraw(candidate(1))


async def test_a_record_that_was_deleted_is_begun_anew(world: Clusters) -> None:
    async with desk(world) as mine:
        await mine.apply(candidate(1), soon())
        await mine.seal(sealed(candidate(1)), set(), soon())
        await world.members["b"].membership.kv.delete("group/j/g/record")
        await mine.seal(sealed(candidate(1, 2), generation=2), set(), soon())
        await mine.seal(sealed(candidate(1, 2), generation=1), set(), soon())
        assert mine.find((1, 2)) is not None
