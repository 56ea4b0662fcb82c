"""Ranks on several hosts: what their workers do, and the client that has them do it and prints the outcome.

python host_ranks.py COORDINATOR SIZE ALGORITHM
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

import numpy as np

import psframework as psf
from psframework.errors import CollectiveMismatch

ELEMENTS = 300_007  # some letters, of several parts, and nothing that divides by a number of ranks


def given(rank: int, dtype: str = "float32", n: int = ELEMENTS) -> Any:
    """The array of a rank; every process can make that of each."""
    return (np.random.default_rng(rank).standard_normal(n) * 3).astype(dtype)


async def sums(group: psf.ProcessGroup) -> list[str]:
    """Digests of reductions that are near enough to NumPy's; they must be the same everywhere."""
    digests = []
    for dtype, close in (("float32", 1e-5), ("float16", 1e-2), ("float64", 1e-12)):
        everyone = np.stack([given(rank, dtype) for rank in range(group.size)]).astype(np.float64)
        mine = given(group.rank, dtype)
        await group.all_reduce(mine, psf.ReduceOp.AVG)
        np.testing.assert_allclose(mine.astype(np.float64), everyone.mean(0), atol=close, rtol=close)
        digests.append(hashlib.sha256(mine.tobytes()).hexdigest())
    whole = given(group.rank, "int64", 12 * group.size)
    part = await group.reduce_scatter(whole)
    expected = sum(given(rank, "int64", 12 * group.size) for rank in range(group.size))
    np.testing.assert_array_equal(part, expected[group.rank * 12 : (group.rank + 1) * 12])
    return digests


async def copies(group: psf.ProcessGroup) -> None:
    """Operations that only move arrays."""
    rank, size = group.rank, group.size
    everything = np.stack([given(each) for each in range(size)])
    np.testing.assert_array_equal(await group.all_gather(given(rank)), everything)
    for root in range(size):
        told = given(root) if rank == root else np.zeros(ELEMENTS, np.float32)
        await group.broadcast(told, root)
        np.testing.assert_array_equal(told, given(root))
        gathered = await group.gather(given(rank), root)
        assert (gathered is None) == (rank != root)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, everything)
        rows = np.arange(6 * size).reshape(2 * size, 3)
        row = await group.scatter(rows if rank == root else None, root)
        np.testing.assert_array_equal(row, rows[2 * rank : 2 * rank + 2])
        total = given(rank, "float64")
        await group.reduce(total, root)
        expected = everything.astype(np.float64).sum(0) if rank == root else given(rank, "float64")
        np.testing.assert_allclose(total, expected, atol=1e-4)
    swapped = await group.all_to_all(np.arange(size) + 10 * rank)
    assert swapped.tolist() == [10 * each + rank for each in range(size)]


@psf.remote
async def exercise(name: str, size: int, algorithm: str) -> dict[str, Any]:
    """Every operation, twice the reductions, and a difference."""
    cluster = psf.current_cluster()
    async with await cluster.process_group(name, size, algorithm=algorithm or None) as group:
        first = await sums(group)
        await copies(group)
        again = await sums(group)
        try:
            await group.all_reduce(np.zeros(4 + (group.rank == size - 1)))
            difference = ""
        except CollectiveMismatch as error:
            difference = str(error)
        await group.barrier()
        return {
            "transport": group.transport, "first": first, "again": again, "difference": difference,
        }  # fmt: skip


async def main(coordinator: str, size: int, algorithm: str) -> None:
    """Prints what each rank says."""
    async with psf.connect(coordinator) as cluster:
        workers = [f"worker-{rank}" for rank in range(size)]
        told = await cluster.rpc_all(
            workers, exercise, args=(algorithm or "best", size, algorithm), timeout=90
        )
        print(json.dumps(told))


if __name__ == "__main__":
    sys.modules["host_ranks"] = sys.modules["__main__"]
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
