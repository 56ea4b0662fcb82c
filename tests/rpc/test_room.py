"""Room for replies: who waits for it, and what is refused."""

import asyncio

import pytest

from psframework.errors import ResourceExhausted
from psframework.rpc.room import Room


async def test_whoever_waits_goes_on_when_there_is_room() -> None:
    room = Room("ann", enough=10, most=100)
    await room.cleared()
    room.hold(10)
    await room.cleared()
    room.hold(1)
    assert room.is_full
    waiting = asyncio.create_task(room.cleared())
    await asyncio.sleep(0)
    room.let_go(1)
    room.hold(5)  # taken again, before the other was woken
    await asyncio.sleep(0)
    assert not waiting.done()
    room.let_go(5)
    await asyncio.wait_for(waiting, 5)
    assert room.held == 10


async def test_far_too_much_is_refused_but_one_may_be_as_large_as_it_likes() -> None:
    room = Room("ann", enough=10, most=100)
    room.hold(1000)
    with pytest.raises(ResourceExhausted, match="1000 bytes of results wait for ann"):
        room.hold(1)
    assert room.held == 1000
