"""Our side of a comparison of ranks: a coordinator, and processes that join one group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import psframework as psf
from benchmarks._host import pin_threads, set_allocator
from benchmarks._ranks import Cases, follow_async, lead_async, ranks

Make = Callable[[psf.ProcessGroup], Cases]


async def serve_ranks(size: int, cases: Make) -> None:
    """Runs the side, a core for each rank; this process is rank 0.

    Args:
        size: number of ranks.
        cases: makes what a rank runs, of the group that it has joined; a function of a module.
    """
    async with psf.local_cluster() as local:
        with ranks(_member, size, local.address, cases) as pipes:
            await _join(0, size, local.address, cases, lambda made: lead_async(pipes, made))


def _member(rank: int, size: int, pipe: Connection, address: str, cases: Make) -> None:
    asyncio.run(_join(rank, size, address, cases, lambda made: follow_async(pipe, made)))


async def _join(
    rank: int, size: int, address: str, cases: Make, serve: Callable[[Cases], Awaitable[None]]
) -> None:
    set_allocator()
    psf.manual_seed(0)
    async with psf.connect(address, name=f"rank-{rank}") as cluster:
        async with await cluster.process_group("bench", size, rank=rank) as group:
            made = cases(group)
            pin_threads(rank)
            await serve(made)
