"""Thousands of contexts, one after the other and beside each other: no process grows."""

import asyncio
from collections.abc import AsyncIterator

import dist_functions as functions
import numpy as np
import pytest
from dist_functions import Layer
from dist_stage import Stage, leaf

import psframework as psf
from psframework.errors import AutogradError

SIZE, MIB = 2_000, 1 << 20  # a context leaves some 50 kB in each worker until it ends


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with (
        psf.local_cluster(workers=3, imports=["dist_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield Stage(local, cluster)


async def one(stage: Stage, layer: psf.RRef, number: int) -> None:
    """A context of a few calls; most end with a backward, some without, some with an error."""
    x = leaf(*np.full(SIZE, float(number)))
    async with stage.cluster.dist_autograd() as ctx:
        y = await layer.rpc_async().forward(x)
        z = await stage.cluster.rpc_async("worker-1", functions.forward_to, (["worker-2"], y))
        if number % 10 == 3:
            return
        if number % 10 == 7:
            await stage.cluster.rpc_async("worker-1", functions.twice, (z,))
            with pytest.raises(AutogradError, match="no gradient reached"):
                await ctx.backward([z.sum()], mode="fast")
            return
        await ctx.backward([z.sum()])
        assert ctx.gradients()[x][0] == 12.0


async def sizes(stage: Stage) -> list[int]:
    """Resident bytes of the workers and of this process."""
    return [*await stage.cluster.rpc_all(stage.workers, functions.resident), functions.resident()]


async def go_on(stage: Stage, layer: psf.RRef, first: int, last: int) -> None:
    for number in range(first, last, 4):
        await asyncio.gather(*(one(stage, layer, number + index) for index in range(4)))


async def many(stage: Stage, count: int) -> None:
    layer = stage.cluster.remote("worker-0", Layer, tuple(np.full(SIZE, 3.0)))
    await go_on(stage, layer, 0, count // 5)
    await stage.clean()
    before, objects = (
        await sizes(stage),
        await stage.cluster.rpc_all(stage.workers, functions.contexts_in_memory),
    )
    await go_on(stage, layer, count // 5, count)
    await stage.clean()
    after = await sizes(stage)
    grown = [(now - then) / MIB for now, then in zip(after, before)]
    assert max(grown) < 4.0, f"MiB: {grown}"
    # Threads and tasks that began in a context have its empty object until they do something else.
    now = await stage.cluster.rpc_all(stage.workers, functions.contexts_in_memory)
    assert max(now) <= max(objects) + 40, (objects, now)
    remembered = await stage.cluster.rpc_all(stage.workers, functions.remembered)
    assert max(remembered) <= min(count, 4096)
    assert remembered[stage.workers.index("worker-0")] <= 8  # it was told that all before have ended
    assert stage.cluster.dist.contexts.remembered == 0


async def test_a_thousand_contexts(stage: Stage) -> None:
    await many(stage, 1_000)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_ten_thousand_contexts(stage: Stage) -> None:
    await many(stage, 10_000)
