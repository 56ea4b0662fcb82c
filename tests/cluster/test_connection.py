"""How a connection ends: its parts in order, so that nobody waits for it. (More in test_handle.py.)"""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from group_clusters import Clusters, clusters

from psframework.errors import ContextClosed, PeerLost


@pytest.fixture
async def world() -> AsyncIterator[Clusters]:
    async with clusters() as world:
        yield world


@pytest.mark.parametrize("graceful", [True, False])
async def test_its_groups_end_on_all_ranks(world: Clusters, graceful: bool) -> None:
    a, b, c = await world.join("a", "b", "c")
    mine, theirs, others = await world.group("g", [a, b, c])
    waits = [asyncio.ensure_future(each.all_reduce(np.ones(10))) for each in (mine, theirs)]
    await asyncio.sleep(0.01)
    await a.shutdown(graceful=graceful)
    with pytest.raises(ContextClosed):
        await waits[0]
    for lost in (waits[1], others.barrier()):
        with pytest.raises(PeerLost, match=r"rank 0 \(a\)") as told:
            await asyncio.wait_for(lost, 5)
        assert told.value.rank == 0


async def test_groups_end_before_anything_is_waited_for(world: Clusters) -> None:
    """A call that takes its time must not keep the other ranks waiting."""
    a, b = await world.join("a", "b")
    _, theirs = await world.group("g", [a, b])
    served = asyncio.Event()

    def open_calls() -> list[str]:
        return [] if served.is_set() else ["1 call(s) of somebody"]

    a._open_calls = open_calls  # type: ignore[method-assign]
    leaving = asyncio.ensure_future(a.shutdown())
    with pytest.raises(PeerLost, match=r"rank 0 \(a\) has closed"):
        await asyncio.wait_for(theirs.barrier(), 5)
    assert not leaving.done()
    served.set()
    await leaving


async def test_a_barrier_of_a_group_is_enough_to_leave_together(world: Clusters) -> None:
    """Whoever is done first leaves at once, and spoils nothing for the others."""
    for turn in range(5):
        members = await world.join(*(f"{name}{turn}" for name in "abc"))
        groups = await world.group("g", members)

        async def end(rank: int, members: object = members, groups: object = groups) -> None:
            await groups[rank].barrier()  # type: ignore[index]
            await members[rank].shutdown()  # type: ignore[index]

        await asyncio.gather(*(end(rank) for rank in range(3)))
