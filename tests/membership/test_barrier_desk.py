"""Calls that wait in barriers: let through only when that is durable, sent away when it stops."""

import asyncio
import math

import pytest

from psframework.errors import ResourceExhausted
from psframework.membership.barrier import BarrierTable, Entry
from psframework.membership.barrier_desk import BarrierDesk, CoordinatorStopping
from psframework.membership.store import Change
from psframework.membership.view import Member

A, B = (Member(name, "trainer", "job", number) for number, name in enumerate("ab", 1))


class Desk:
    def __init__(self) -> None:
        self.stored: list[tuple[Change, asyncio.Future[None]]] = []
        self.desk = BarrierDesk(BarrierTable(), self.submit, lambda: 0.0)

    def submit(self, change: Change) -> asyncio.Future[None]:
        self.stored.append((change, asyncio.get_running_loop().create_future()))
        return self.stored[-1][1]

    def enter(self, member: Member, number: int = 1) -> asyncio.Task[tuple[str, ...]]:
        return asyncio.ensure_future(self.desk.enter("start", 2, Entry(member, number, math.inf)))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nobody_passes_before_it_is_stored() -> None:
    desk = Desk()
    calls = [desk.enter(A), desk.enter(B)]
    await settle()
    assert len(desk.stored) == 1 and not any(call.done() for call in calls)
    desk.stored[0][1].set_result(None)
    assert await asyncio.gather(*calls) == [("a", "b"), ("a", "b")]


async def test_a_store_that_fails_fails_the_barrier() -> None:
    desk = Desk()
    calls = [desk.enter(A), desk.enter(B)]
    await settle()
    desk.stored[0][1].set_exception(ResourceExhausted("disk full"))
    for call in calls:
        with pytest.raises(ResourceExhausted):
            await call


async def test_the_last_one_cancelled_does_not_hold_up_the_others() -> None:
    desk = Desk()
    first, last = desk.enter(A), desk.enter(B)
    await settle()
    last.cancel()
    await settle()
    desk.stored[0][1].set_result(None)
    assert await first == ("a", "b")


async def test_a_retry_may_come_before_its_broken_call_is_noticed() -> None:
    desk = Desk()
    broken = desk.enter(A)
    await settle()
    again = desk.enter(A)
    await settle()
    broken.cancel()
    await settle()
    other = desk.enter(B)
    await settle()
    desk.stored[0][1].set_result(None)
    assert await again == await other == ("a", "b")


async def test_a_cancelled_call_no_longer_counts() -> None:
    desk = Desk()
    first = desk.enter(A)
    await settle()
    first.cancel()
    await settle()
    other = desk.enter(B)
    await settle()
    assert desk.stored == [] and not other.done()
    again = desk.enter(A, number=2)
    await settle()
    desk.stored[0][1].set_result(None)
    assert sorted(await again) == ["a", "b"] and await other


async def test_stopping_sends_everybody_away() -> None:
    desk = Desk()
    call = desk.enter(A)
    await settle()
    desk.desk.stop()
    with pytest.raises(CoordinatorStopping):
        await call
    with pytest.raises(CoordinatorStopping):
        await desk.enter(B)


async def test_a_repeated_entry_passes_no_sooner() -> None:
    desk = Desk()
    calls = [desk.enter(A), desk.enter(B)]
    await settle()
    calls.append(desk.enter(A))  # its first call broke while the release was being stored
    await settle()
    assert not any(call.done() for call in calls)
    for _, stored in desk.stored:
        stored.set_result(None)
    assert await asyncio.gather(*calls) == [("a", "b")] * 3
