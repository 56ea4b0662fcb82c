"""Ranks that have run out shadow the others; who is left is known to all."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from psframework.collective.group import ProcessGroup
from psframework.ddp.join import Join
from psframework.errors import ArgumentError, CollectiveMismatch
from tests.support.ddp_ranks import Table


class Wrapper:
    """What a Join sees of a DistributedDataParallel."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.joining: Join | None = None
        self.told = False
        self.events: list[Any] = []

    async def landed(self) -> None:
        """Nothing is under way."""

    async def whole(self, steps: Coroutine[Any, Any, None]) -> None:
        await steps

    async def shadow(self) -> None:
        assert self.joining is not None
        self.events.append(("shadow", self.joining.active, self.joining.scale))

    async def spread(self, src: int) -> None:
        self.events.append(("spread", src))


async def use(
    wrapper: Wrapper, steps: int, whole: bool = True, error: Exception | None = None, told: bool = False
) -> Any:
    try:
        async with Join(wrapper, whole) as join:
            wrapper.told = told
            for _ in range(steps):
                assert await join.announce(True)
                wrapper.events.append((join.active, join.scale))
            if error is not None:
                raise error
    except (ValueError, CollectiveMismatch) as raised:
        return raised
    assert wrapper.joining is None
    return wrapper.events


async def together(*uses: Any) -> list[Any]:
    async with asyncio.timeout(20):
        return await asyncio.gather(*uses)


async def test_who_runs_out_shadows_the_rest_and_gets_the_last_ones_model() -> None:
    wrappers = [Wrapper(group) for group in Table(3).groups()]
    events = await together(*[use(each, steps, False) for each, steps in zip(wrappers, (1, 3, 2))])
    assert events[0] == [
        ([0, 1, 2], 1.0), ("shadow", [1, 2], 1.5), ("shadow", [1], 3.0), ("spread", 1),
    ]  # fmt: skip
    assert events[1] == [([0, 1, 2], 1.0), ([1, 2], 1.5), ([1], 3.0), ("spread", 1)]
    assert [each[-1] for each in events] == [("spread", 1)] * 3


async def test_dividing_by_all_needs_no_scale_and_even_inputs_no_spreading() -> None:
    wrappers = [Wrapper(group) for group in Table(2).groups()]
    events = await together(*[use(each, 2) for each in wrappers])
    assert events == [[([0, 1], 1.0), ([0, 1], 1.0)]] * 2
    assert await together(*[use(Wrapper(group), 0) for group in Table(2).groups()]) == [[], []]


async def test_an_error_is_told_once() -> None:
    groups = Table(2).groups()
    wrappers = [Wrapper(group) for group in groups]
    first, second = await together(use(wrappers[0], 2), use(wrappers[1], 1, error=ValueError("late")))
    assert isinstance(first, CollectiveMismatch) and "ValueError: late" in str(first)
    assert isinstance(second, ValueError)
    await together(*[group.barrier() for group in groups])  # nothing is left over
    # The backward has told it already.
    assert isinstance(await use(wrappers[1], 0, error=ValueError("late"), told=True), ValueError)
    await together(*[group.barrier() for group in groups])


async def test_one_block_inside_another() -> None:
    wrapper = Wrapper(Table(1).groups()[0])
    async with Join(wrapper, True):
        with pytest.raises(ArgumentError, match="one block"):
            await Join(wrapper, True).__aenter__()
