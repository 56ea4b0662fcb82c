"""Who holds the ranks of a pipe, and who takes the place of one that is gone."""

import asyncio
from typing import Any

import pytest

from psframework.errors import ArgumentError, RendezvousTimeout
from psframework.membership.view import Member, MemberState
from psframework.pipeline.placement import ROLE, Vacancy, choose, life, natural, replacement, stage_services
from psframework.rpc.deadline import Deadline


class Directory:
    """Members as a test wants them."""

    def __init__(self, *members: Member) -> None:
        self.there = list(members)

    def members(self, role: str | None = None) -> tuple[Member, ...]:
        return tuple(each for each in self.there if role in (None, each.role))


def stage(number: int, incarnation: int = 1, stalled: bool = False) -> Member:
    state = MemberState.STALLED if stalled else MemberState.LIVE
    return Member(f"stage-{number}", ROLE, incarnation=incarnation, state=state)


def directory(*members: Member) -> Any:
    return Directory(*members)


def soon(seconds: float = 0.0) -> Deadline:
    return Deadline.after(seconds)


def test_names_are_in_natural_order() -> None:
    names = ["stage-10", "stage-2", "stage", "other-3", "stage-2b", "7", "stage-02"]
    assert sorted(names, key=natural)[-4:] == ["stage-2", "stage-02", "stage-2b", "stage-10"]
    there = directory(*[stage(number) for number in (10, 9, 100, 1)], Member("worker-0", "worker"))
    assert stage_services(there) == ["stage-1", "stage-9", "stage-10", "stage-100"]


def test_a_pipe_begins_on_the_first_that_answer() -> None:
    there = directory(stage(10), stage(2), stage(0, stalled=True), Member("worker-0", "worker"), stage(3))
    assert choose(there, 2, None) == ["stage-2", "stage-3"]
    with pytest.raises(
        RendezvousTimeout,
        match=r"needs 4 stage services, 3 are here \(stage-2, stage-3, stage-10\): start more with",
    ):
        choose(there, 4, None)
    with pytest.raises(RendezvousTimeout, match=r"0 are here \(none\)"):
        choose(directory(), 1, None)


def test_a_pipe_begins_where_its_user_says() -> None:
    there = directory(*[stage(number) for number in range(3)])
    assert choose(there, 2, ["stage-2", "worker-0", "stage-0"]) == ["stage-2", "worker-0"]
    for on in (["stage-0"], ["stage-0", "stage-0"], ["stage-0", "stage-1", "stage-0"], []):
        with pytest.raises(ArgumentError, match=r"on=\[.*\]: this pipeline needs 2 different services"):
            choose(there, 2, on)


async def found(
    there: Any, lost: list[Member], busy: list[str], name: str = "stage-1", tried: Any = ()
) -> str | None:
    vacancy = Vacancy(name, busy, {life(each) for each in lost}, {life(each) for each in tried})
    member = await replacement(there, vacancy, soon())
    return None if member is None else f"{member.name} {member.incarnation}"


async def test_a_new_life_of_the_same_name_goes_before_a_spare() -> None:
    old = stage(1, 1)
    there = directory(stage(0), stage(1, 2), stage(2))
    assert await found(there, [old], []) == "stage-1 2"
    assert await found(directory(stage(0), stage(2)), [old], []) == "stage-0 1"
    assert await found(directory(stage(10), stage(2)), [old], []) == "stage-2 1"


async def test_who_is_not_taken() -> None:
    """Who is in the pipe, was asked in vain, does not answer, or holds no stages."""
    old, other = stage(1, 1), stage(3, 1)
    there = directory(
        stage(0), old, other, stage(4, stalled=True), Member("worker-0", "worker"), stage(5, stalled=True)
    )
    assert await found(there, [old], ["stage-0"], tried=[old, other]) is None
    there.there.append(stage(3, 2))
    assert await found(there, [old], ["stage-0"], tried=[old, other]) == "stage-3 2"
    assert await found(there, [old], ["stage-0", "stage-3"], tried=[old, other]) is None
    there.there.append(stage(1, 2, stalled=True))
    assert await found(there, [old], ["stage-0", "stage-3"], tried=[old, other]) is None


async def test_who_was_lost_but_is_listed_is_the_last_choice() -> None:
    """It may be dead already; or it was stalled, and answers again."""
    lost = [stage(1), stage(2)]
    assert await found(directory(stage(1), stage(2), stage(9)), lost, []) == "stage-9 1"
    assert await found(directory(stage(2), stage(1)), lost, []) == "stage-1 1"
    assert await found(directory(stage(2), stage(1)), lost, [], tried=[stage(1)]) == "stage-2 1"


async def test_a_service_of_another_kind_that_its_user_chose_may_come_back() -> None:
    """But it is no spare for others."""
    old = Member("worker-0", "worker", incarnation=1)
    there = directory(Member("worker-0", "worker", incarnation=2), Member("worker-1", "worker"))
    assert await found(there, [old], [], "worker-0") == "worker-0 2"
    assert await found(there, [stage(1)], []) is None


async def test_it_waits_for_one_that_appears() -> None:
    there = directory(stage(0))
    task = asyncio.create_task(replacement(there, Vacancy("stage-1", ["stage-0"]), soon(20)))
    await asyncio.sleep(0.01)
    assert not task.done()
    there.there.append(stage(7))
    member = await asyncio.wait_for(task, 10)
    assert member is not None and member.name == "stage-7"


async def test_it_waits_for_one_that_is_stalled_to_answer_again() -> None:
    there = directory(stage(7, stalled=True))
    task = asyncio.create_task(replacement(there, Vacancy("stage-1"), soon(20)))
    await asyncio.sleep(0.01)
    assert not task.done()
    there.there[:] = [stage(7)]
    member = await asyncio.wait_for(task, 10)
    assert member is not None and member.name == "stage-7"


async def test_a_wait_ends_with_its_deadline_or_when_it_is_cancelled() -> None:
    there = directory()
    assert await asyncio.wait_for(replacement(there, Vacancy("stage-1"), soon(0.1)), 10) is None
    task = asyncio.create_task(replacement(there, Vacancy("stage-1"), soon(60)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()
