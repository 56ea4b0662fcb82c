"""What is closed when its owner goes."""

import asyncio
import threading

import pytest

from psframework.pipeline.finalizers import closed_with


class Owner:
    pass


class Thing:
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_it_is_closed_when_its_owner_goes_in_whichever_thread(elsewhere: bool) -> None:
    owners, thing = [Owner()], Thing()
    closed_with(owners[0], thing)
    await asyncio.sleep(0)
    assert not thing.closed.is_set()
    if elsewhere:
        thread = threading.Thread(target=owners.clear)
        thread.start()
        thread.join()
    else:
        owners.clear()
    await asyncio.wait_for(thing.closed.wait(), 5)


async def test_what_was_closed_is_left_alone() -> None:
    owners, thing, other = [Owner()], Thing(), Thing()
    closed_with(owners[0], thing).detach()
    closed_with(owners[0], other)
    owners.clear()
    await asyncio.wait_for(other.closed.wait(), 5)
    assert not thing.closed.is_set()


def test_a_loop_that_has_ended_is_no_error() -> None:
    owners, thing = [Owner()], Thing()

    async def main() -> None:
        closed_with(owners[0], thing)

    asyncio.run(main())
    owners.clear()
    assert not thing.closed.is_set()
