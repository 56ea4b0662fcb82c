"""ShardedOptimizer under DistributedDataParallel, on real processes."""

from collections.abc import AsyncIterator
from typing import Any

import hook_functions as functions
import pytest

import psframework as psf

WORKERS = ["worker-0", "worker-1", "worker-2"]


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[psf.Cluster]:
    async with (
        psf.local_cluster(workers=len(WORKERS), imports=["hook_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield cluster


async def on(cluster: psf.Cluster, size: int, *args: Any) -> list[Any]:
    return await cluster.rpc_all(WORKERS[:size], functions.sharded, (size, *args), timeout=500.0)


@pytest.mark.parametrize("kind", functions.OPTIMIZERS)
@pytest.mark.parametrize("size", [2, 3])
async def test_the_bits_of_an_optimizer_over_all(cluster: psf.Cluster, kind: str, size: int) -> None:
    ranks = await on(cluster, size, kind, (0, 5))
    assert all(rank["same"] for rank in ranks)
    assert len({rank["digest"] for rank in ranks}) == 1
    assert [rank["states"] for rank in ranks] == [True] + [None] * (size - 1)


@pytest.mark.parametrize("huge", [0, 3000])
async def test_each_rank_keeps_its_share_of_the_state(cluster: psf.Cluster, huge: int) -> None:
    ranks = await on(cluster, 3, "Adam", (0, 1), None, huge)
    whole = ranks[0]["nbytes"][1]
    assert sum(rank["nbytes"][0] for rank in ranks) == whole
    assert max(rank["nbytes"][0] for rank in ranks) <= whole * (1 / 3 + 0.05)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
async def test_the_state_goes_to_another_number_of_ranks(
    cluster: psf.Cluster, before: int, after: int
) -> None:
    first = await on(cluster, before, "Adam", (0, 3))
    second = await on(cluster, after, "Adam", (3, 6), first[0]["next"])
    assert all(rank["same"] for rank in second), "a whole optimizer went on from the same state"
    assert second[0]["states"]
    assert second[0]["next"]["state"]["state"][0]["step"] == 6
