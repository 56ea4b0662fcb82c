"""A step of data-parallel training against torch's DDP over gloo: two ranks, one thread each, on one host.

    python benchmarks/ddp.py --torch-python /path/to/python [--reps 5] [--only 24M]

Both ranks train an MLP by SGD on batches of 64. "alone" is the same step in both processes at the same time
without DDP, the price of computing side by side; what a DDP step takes beyond it is told for both sides. How
much of a step is communication that is not hidden `ddp.timeline` knows: a tenth is allowed. "DataParallel" is
one process that computes the same 128 samples a step in two threads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import psframework as psf
import psframework.nn.functional as F
from benchmarks._host import spread_threads
from benchmarks._our_ranks import serve_ranks
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._ranks import BATCH, MODELS, Cases
from benchmarks._side import Figures
from benchmarks._table import Row, report
from psframework import nn, optim

RANKS = 2
STEPS = 15  # whose timelines are looked at
ROWS = (
    Row("0.03M", "64-128-128-10, 0.03M parameters", "steps/s"),
    Row("0.03M alone", "the same without DDP", "steps/s"),
    Row("0.67M", "784-512-512-10, 0.67M parameters", "steps/s", 1.0, 3.0),
    Row("0.67M alone", "the same without DDP", "steps/s"),
    Row("24M", "784-4096-4096-1024-10, 24M parameters", "steps/s", 1.0, 2.0),
    Row("24M alone", "the same without DDP", "steps/s"),
)
OURS = (
    Row("0.67M exposed", "0.67M, communication not hidden", "%", 1.0, None, lower_is_better=True, limit=10.0),
    Row("24M exposed", "24M, communication not hidden", "%", 1.0, None, lower_is_better=True, limit=10.0),
    Row("0.03M threads", "0.03M, DataParallel in one process", "steps/s"),
    Row("0.67M threads", "0.67M, DataParallel in one process", "steps/s"),
    Row("24M threads", "24M, DataParallel in one process", "steps/s"),
)


def mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Bench:
    """What one rank of ours runs."""

    def __init__(self, group: psf.ProcessGroup) -> None:
        self._group, self._cores = group, os.sched_getaffinity(0)  # before it is pinned

    def cases(self) -> Cases:
        """By the names of the rows."""
        found: dict[str, Callable[[], Awaitable[float]]] = {}
        for name, (sizes, count) in MODELS.items():
            found[name] = lambda s=sizes, n=count: self._together(s, n)
            found[f"{name} exposed"] = lambda s=sizes: self._exposed(s)
            found[f"{name} alone"] = lambda s=sizes, n=count: self._alone(mlp(s), s, n)
            found[f"{name} threads"] = lambda s=sizes, n=count: self._threads(s, n)
        return found

    async def _together(self, sizes: list[int], count: int) -> float:
        async with await psf.DistributedDataParallel(mlp(sizes), self._group) as ddp:
            return await self._timed(self._step(ddp, sizes), count)

    async def _exposed(self, sizes: list[int]) -> float:
        """Percent of forward and backward in which rank 0 only waited for communication."""
        async with await psf.DistributedDataParallel(mlp(sizes), self._group) as ddp:
            step, shares = self._step(ddp, sizes), []
            for _ in range(STEPS):
                await step()
                found = re.search(r"not hidden by computation: .*?\(([\d.]+) %\)", ddp.timeline().svg)
                assert found is not None
                shares.append(float(found[1]))
            return statistics.median(shares[3:])

    def _step(self, ddp: psf.DistributedDataParallel, sizes: list[int]) -> Callable[[], Awaitable[None]]:
        optimizer = optim.SGD(ddp.parameters(), lr=0.01)
        x, y = self._batch(sizes)

        async def step() -> None:
            optimizer.zero_grad()
            await ddp.backward(F.cross_entropy(ddp(x), y))
            optimizer.step()

        return step

    async def _threads(self, sizes: list[int], count: int) -> float:
        """By one rank alone, on all cores."""
        if self._group.rank:
            await self._group.barrier()
            return 0.0
        cores = os.sched_getaffinity(0)
        spread_threads(self._cores)
        model = psf.DataParallel(mlp(sizes), ["cpu"] * RANKS)
        figure = await self._alone(model, sizes, count, RANKS * BATCH)
        spread_threads(cores)
        return figure

    async def _alone(self, model: nn.Module, sizes: list[int], count: int, batch: int = BATCH) -> float:
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        x, y = self._batch(sizes, batch)

        def compute() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return await self._timed(lambda: psf.compute(compute), count)

    def _batch(self, sizes: list[int], batch: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self._group.rank)
        return rng.normal(size=(batch, sizes[0])).astype(np.float32), rng.integers(0, sizes[-1], batch)

    async def _timed(self, step: Callable[[], Awaitable[None]], count: int) -> float:
        """Steps a second, after some to warm up."""
        for _ in range(3):
            await step()
        await self._group.barrier()
        start = time.perf_counter()
        for _ in range(count):
            await step()
        return count / (time.perf_counter() - start)


def cases(group: psf.ProcessGroup) -> Cases:
    """What one rank of ours runs."""
    return Bench(group).cases()


def say_what_it_adds(figures: Figures, side: str) -> None:
    """Which part of a step is not there without DDP."""
    for name in [each for each in MODELS if each in figures]:
        together, alone = (statistics.median(figures[case][side]) for case in (name, f"{name} alone"))
        print(f"{side}, {name}: {max(0.0, 1 - together / alone):.1%} of a step is what DDP adds to it")


def main() -> int:
    words = "rows of models in whose name this expression is found"
    args = parse(__doc__, flags={"--only": {"default": "", "help": words}})
    if args.side:
        asyncio.run(serve_ranks(RANKS, cases))
        return 0
    rows, own = ([row for row in part if re.search(args.only, row.case)] for part in (ROWS, OURS))
    sides = [ours(__file__), *theirs(args, "torch", "_torch_ddp.py")]
    figures = measure(sides, rows, args.reps, own)
    good = report(figures, [*rows, *own])
    for side in sides:
        say_what_it_adds(figures, side.name)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
