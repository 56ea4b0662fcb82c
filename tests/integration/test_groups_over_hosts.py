"""A group over two hosts, with shared memory in each and the network between them, all for real.

Members that take segments in different folders can't share memory, as on different machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

import psframework as psf
from psframework.cluster.connect import connect
from psframework.cluster.local import local_cluster
from psframework.errors import CollectiveMismatch, PeerLost

HOSTS = [0, 1, 0, 0, 1]  # of each rank
SIZE = len(HOSTS)


class Ranks:
    """The members of a cluster, all in this process, and groups of all of them."""

    def __init__(self, clusters: list[psf.Cluster], stacks: list[AsyncExitStack]) -> None:
        self.clusters, self.stacks = clusters, stacks

    async def group(self, name: str) -> list[psf.ProcessGroup]:
        opening = [each.process_group(name, SIZE, rank=rank) for rank, each in enumerate(self.clusters)]
        groups = await asyncio.gather(*opening)
        assert {each.transport for each in groups} == {"hierarchical"}
        return groups


@pytest.fixture(scope="module")
async def ranks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ranks]:
    folders = [tmp_path_factory.mktemp(f"host-{host}") for host in sorted(set(HOSTS))]
    async with local_cluster() as local, AsyncExitStack() as outer:
        clusters, stacks = [], []
        patch = outer.enter_context(pytest.MonkeyPatch.context())
        for rank, host in enumerate(HOSTS):
            patch.setenv("PSF_SHM_DIR", str(folders[host]))
            stack = await outer.enter_async_context(AsyncExitStack())
            clusters.append(await stack.enter_async_context(connect(local.address, name=f"rank-{rank}")))
            stacks.append(stack)
        yield Ranks(clusters, stacks)


async def test_operations(ranks: Ranks) -> None:
    groups = await ranks.group("operations")
    arrays = [np.random.default_rng(rank).standard_normal(300_000).astype(np.float32) for rank in range(SIZE)]
    mean = np.mean(np.stack(arrays), axis=0, dtype=np.float64)
    await asyncio.gather(*(each.all_reduce(a, psf.ReduceOp.AVG) for each, a in zip(groups, arrays)))
    assert len({array.tobytes() for array in arrays}) == 1, "the same bits on all"
    np.testing.assert_allclose(arrays[0], mean, atol=1e-6)
    for root in range(SIZE):
        told = [f"by {root}" if each.rank == root else None for each in groups]
        got = await asyncio.gather(*(each.broadcast_object(t, src=root) for each, t in zip(groups, told)))
        assert got == [f"by {root}"] * SIZE
        rows = np.arange(2.0 * SIZE).reshape(SIZE, 2)
        got = await asyncio.gather(
            *(each.scatter(rows if each.rank == root else None, src=root) for each in groups)
        )
        assert [array.tolist() for array in got] == rows[:, None].tolist()
    got = await asyncio.gather(*(each.all_to_all(np.arange(SIZE) + 10 * each.rank) for each in groups))
    assert [array.tolist() for array in got] == [[10 * r + to for r in range(SIZE)] for to in range(SIZE)]
    got = await asyncio.gather(*(each.all_gather(np.array(each.rank)) for each in groups))
    assert [array.tolist() for array in got] == [list(range(SIZE))] * SIZE


async def test_a_mismatch_on_one_host_reaches_all_and_the_group_lives_on(ranks: Ranks) -> None:
    groups = await ranks.group("differ")
    for odd in range(SIZE):
        wrong = [np.ones(4 if each.rank != odd else 5) for each in groups]
        got = await asyncio.gather(
            *(each.all_reduce(array) for each, array in zip(groups, wrong)), return_exceptions=True
        )
        assert all(isinstance(each, CollectiveMismatch) for each in got), got
        assert all(f"rank-{odd}" in str(each) and "(5,)" in str(each) for each in got), got
    assert [each.sum() for each in await asyncio.gather(*(g.all_reduce(np.ones(4)) for g in groups))] == [
        4.0 * SIZE
    ] * SIZE


async def test_a_member_that_goes_is_lost_on_both_hosts_and_the_others_go_on(ranks: Ranks) -> None:
    groups = await ranks.group("losing")
    waiting = [asyncio.ensure_future(each.all_reduce(np.ones(4))) for each in groups if each.rank != 4]
    await asyncio.sleep(0.05)
    await ranks.stacks[4].aclose()
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(each, PeerLost), each
        assert (each.rank, each.peer) == (4, "rank-4")
    smaller = await asyncio.gather(*(each.shrink() for each in groups if each.rank != 4))
    got = await asyncio.gather(*(each.all_reduce(np.ones(4)) for each in smaller))
    assert [array.tolist() for array in got] == [[4.0] * 4] * 4
