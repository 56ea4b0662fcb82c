"""The line of a group's backwards."""

import asyncio

import pytest

from psframework.ddp.line import Line, line_of
from tests.support.ddp_ranks import Table


async def test_each_group_has_its_own() -> None:
    first, second = Table(2).groups()
    assert line_of(first) is line_of(first)
    assert line_of(first) is not line_of(second)


async def test_places_are_taken_when_they_are_asked_for() -> None:
    line, order = Line(), []

    async def use(number: int) -> None:
        async with places[number]:
            for _ in range(3 - number):
                await asyncio.sleep(0)
            order.append(number)

    assert line.empty
    places = [line.join() for _ in range(3)]
    assert not line.empty
    await asyncio.gather(*map(use, reversed(range(3))))
    assert order == [0, 1, 2] and line.empty


async def test_one_that_fails_lets_the_next_one_in() -> None:
    line = Line()
    first, second = line.join(), line.join()
    with pytest.raises(ValueError, match="no"):
        async with first:
            raise ValueError("no")
    async with second:
        assert not line.empty


async def test_one_that_is_cancelled_while_it_waits_lets_the_next_one_in() -> None:
    line = Line()
    first, second, third = line.join(), line.join(), line.join()

    async def use() -> None:
        async with second:
            pytest.fail("it is not its turn")

    async with first:
        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with third:
            pass
