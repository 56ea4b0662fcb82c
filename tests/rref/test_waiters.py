"""Whoever waits is woken once, gets an error of its own, and leaves nothing behind."""

import asyncio

import pytest

from psframework.errors import DeadlineExceeded, PeerLost
from psframework.rpc.deadline import Deadline
from psframework.rref.waiters import Waiters, fresh


def test_errors_that_are_kept_are_copied() -> None:
    kept = PeerLost("gone", peer="bob", reason="lease", may_have_run=False)
    again = fresh(kept)
    assert again is not kept
    assert (str(again), again.peer, again.reason, again.may_have_run) == ("gone", "bob", "lease", False)


async def test_all_who_wait_for_one_thing_are_woken() -> None:
    waiters = Waiters()
    waiting = [asyncio.ensure_future(waiters.wait("a", Deadline.after(10), "late")) for _ in range(3)]
    other = waiters.add("b")
    await asyncio.sleep(0)
    waiters.wake("a")
    await asyncio.gather(*waiting)
    assert not other.done()
    assert len(waiters) == 1
    waiters.end(PeerLost("the end"))
    with pytest.raises(PeerLost, match="the end"):
        await other
    assert len(waiters) == 0


async def test_each_gets_an_error_of_its_own() -> None:
    waiters, error = Waiters(), PeerLost("gone", peer="bob")
    waiting = [waiters.add(None), waiters.add(None), waiters.settled(error)]
    waiters.wake(None, error)
    await asyncio.wait(waiting)
    raised = {id(waiter.exception()) for waiter in waiting}
    assert len(raised) == 3 and id(error) not in raised
    assert waiters.settled(None).result() is None


async def test_those_who_gave_up_are_forgotten() -> None:
    waiters = Waiters()
    with pytest.raises(DeadlineExceeded, match="too late"):
        await waiters.wait("a", Deadline.after(0.01), "too late")
    waiting = asyncio.ensure_future(waiters.wait("a", Deadline.NEVER, ""))
    await asyncio.sleep(0)
    assert len(waiters) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert len(waiters) == 0
