"""Measures how ranks on a network all-reduce best, by real processes on this machine: `psf bench --tune`.

Workers of a local cluster are the ranks. They have no shared memory between them, as if each was on a host
of its own: what is measured is the work of sending and adding, not the wire of a certain network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from psframework.cluster.connect import connect
from psframework.cluster.current import current_cluster
from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.collective.decision import DIRECT_HOSTS
from psframework.collective.group import ProcessGroup
from psframework.collective.ops import ReduceOp
from psframework.collective.tuning import ALWAYS, NEVER, Algorithm, Table, fit
from psframework.errors import ArgumentError
from psframework.rpc.registry import remote
from psframework.rref.handle import RRef

RANKS: Final = (2, 4)
SIZES: Final = tuple(4096 << 2 * step for step in range(7))  # 4 KiB to 16 MiB

_LANES = "inline,striped"
_FORCED = {Algorithm.WHOLE: ALWAYS, Algorithm.DIRECT: 0, Algorithm.RING: 0}  # bytes that go in one round


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Args:
        ranks: the sizes of groups.
        sizes: bytes of the arrays.
        rounds: how often each algorithm has its turn; the fastest counts, since what disturbs only slows.
        seconds: how long a turn takes.
    """

    ranks: tuple[int, ...] = RANKS
    sizes: tuple[int, ...] = SIZES
    rounds: int = 5
    seconds: float = 0.1

    def __post_init__(self) -> None:
        if not self.ranks or not self.sizes:
            raise ArgumentError("nothing to measure: name numbers of ranks, and sizes")
        for ranks in self.ranks:
            if not 2 <= ranks <= DIRECT_HOSTS:
                raise ArgumentError(
                    f"{ranks} ranks: from 2 to {DIRECT_HOSTS}; more take a ring, and one has nothing to do"
                )
        if min(self.sizes) < 4:
            raise ArgumentError(f"arrays of {min(self.sizes)} bytes: they have an element at least")


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured for arrays of one size.

    Attributes:
        ranks: in the group.
        nbytes: of the array.
        seconds: an all-reduce takes on the slowest rank, by algorithm.
    """

    ranks: int
    nbytes: int
    seconds: dict[Algorithm, float]


@remote
class TuningRank:
    """One rank, in a process of its own: a group for each algorithm."""

    def __init__(self) -> None:
        self._groups: dict[Algorithm, ProcessGroup] = {}

    async def open(self, rank: int, size: int) -> None:
        """Makes the groups, together with the other ranks."""
        cluster = current_cluster()
        for algorithm, whole in _FORCED.items():
            cluster.groups.table = Table({size: whole}, NEVER)
            kind = "ring" if algorithm is Algorithm.RING else "direct"
            name = f"tune-{size}-{algorithm}"
            self._groups[algorithm] = await cluster.process_group(name, size, rank=rank, algorithm=kind)

    async def measure(self, algorithm: str, nbytes: int, seconds: float) -> float:
        """Seconds of one all-reduce, on the slowest rank, from about `seconds` of them."""
        group = self._groups[Algorithm(algorithm)]
        x = np.zeros(nbytes // 4, np.float32)
        await _slowest(group, x, 1)
        once = await _slowest(group, x, 1)
        return await _slowest(group, x, max(1, int(seconds / once)))

    async def close(self) -> None:
        """Ends the groups."""
        for group in self._groups.values():
            await group.close()


async def _slowest(group: ProcessGroup, x: np.ndarray, times: int) -> float:
    await group.barrier()
    start = time.perf_counter()
    for _ in range(times):
        await group.all_reduce(x)
    took = np.array((time.perf_counter() - start) / times)
    await group.all_reduce(took, ReduceOp.MAX)
    return float(took)


async def tune(plan: Plan, show: Callable[[Figure], object]) -> tuple[Table, list[Figure]]:
    """Measures, and makes the table of it.

    Args:
        plan: what to measure.
        show: called with each figure as soon as it is there.
    """
    figures: list[Figure] = []
    options = LocalOptions(workers=max(plan.ranks), lanes=_LANES, imports=(__name__,))
    async with LocalCluster(options) as local, connect(local.address, name="tuner") as cluster:
        workers = [f"worker-{rank}" for rank in range(max(plan.ranks))]
        for size in sorted(set(plan.ranks)):
            async with _ranks([cluster.remote(worker, TuningRank) for worker in workers[:size]]) as ranks:
                for nbytes in sorted(set(plan.sizes)):
                    figures.append(await _figure(ranks, nbytes, plan))
                    show(figures[-1])
    measured: dict[int, dict[int, dict[Algorithm, float]]] = {}
    for each in figures:
        measured.setdefault(each.ranks, {})[each.nbytes] = each.seconds
    return fit(measured), figures


@asynccontextmanager
async def _ranks(ranks: Sequence[RRef]) -> AsyncIterator[Sequence[RRef]]:
    await asyncio.gather(*(each.rpc_async().open(rank, len(ranks)) for rank, each in enumerate(ranks)))
    yield ranks
    await asyncio.gather(*(each.rpc_async().close() for each in ranks))


async def _figure(ranks: Sequence[RRef], nbytes: int, plan: Plan) -> Figure:
    """The algorithms take turns, so that what disturbs the machine disturbs all of them."""
    seconds: dict[Algorithm, float] = {}
    for _ in range(plan.rounds):
        for algorithm in Algorithm:
            asked = (each.rpc_async().measure(str(algorithm), nbytes, plan.seconds) for each in ranks)
            took, *_rest = await asyncio.gather(*asked)
            seconds[algorithm] = min(took, seconds.get(algorithm, took))
    return Figure(len(ranks), nbytes, seconds)
