"""Collectives against gloo: all-reduce of 4 KiB to 256 MiB, barrier, and the other operations at 16 MiB.

    python benchmarks/collectives.py --torch-python /path/to/python [--reps 5] [--only "^all_reduce 4"]

Ranks of both sides are pinned alike, one thread each, with the same allocator; a figure is that of the
slowest rank. Bandwidth is the size of the whole array by the time of an operation. Rows that say "resident"
use arrays of `group.empty`, which are reduced in place; those that say TCP leave shared memory out on our
side, as gloo does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import psframework as psf
from benchmarks._our_ranks import serve_ranks
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._ranks import BARRIERS, OPERATION_BYTES, SIZES, Cases, human, iterations
from benchmarks._side import Figures
from benchmarks._table import Row, report

OPERATIONS = ("reduce_scatter", "all_gather", "broadcast", "all_to_all")
LARGE = [f"all_reduce {human(nbytes)}" for nbytes in SIZES]
# Title -> ranks, our lanes, the transport that our group must have chosen, and the rows.
PARTS: dict[str, tuple[int, str, str, list[Row]]] = {
    "2 ranks, shared memory": (
        2, "", "shm", [
            Row("all_reduce 4 KiB", "all_reduce 4 KiB", "us", 1e6, 0.1, lower_is_better=True),
            Row("barrier", "barrier", "us", 1e6, 0.1, lower_is_better=True),
            *(Row(case, case, "GB/s", 1e-9, 4.0) for case in LARGE),
            *(Row(f"resident {case}", f"resident {case}", "GB/s", 1e-9, 10.0) for case in LARGE),
            *(Row(case, f"{case} 16 MiB", "GB/s", 1e-9, 2.0) for case in OPERATIONS),
        ],
    ),
    "4 ranks, shared memory": (
        4, "", "shm", [
            Row("all_reduce 4 KiB", "all_reduce 4 KiB", "us", 1e6, 0.1, lower_is_better=True),
            Row("barrier", "barrier", "us", 1e6, 0.1, lower_is_better=True),
            Row("all_reduce 16 MiB", "all_reduce 16 MiB", "GB/s", 1e-9),
        ],
    ),
    "2 ranks, TCP": (
        2, "inline,striped", "direct", [
            Row("all_reduce 4 KiB", "all_reduce 4 KiB", "us", 1e6, lower_is_better=True),
            *(Row(case, case, "GB/s", 1e-9, 1.0) for case in LARGE),
        ],
    ),
}  # fmt: skip


class Bench:
    """What one rank of ours runs."""

    def __init__(self, group: psf.ProcessGroup) -> None:
        expected = os.environ["PSF_BENCH_TRANSPORT"]
        assert group.transport == expected, f"{group.transport}, and this is to measure {expected}"
        self._group = group
        self._arrays: dict[tuple[int, bool], np.ndarray] = {}

    def cases(self) -> Cases:
        """By the names of the rows."""
        found: dict[str, Callable[[], Awaitable[float]]] = {
            "barrier": lambda: self._measure(self._group.barrier, BARRIERS),
            "all_reduce 4 KiB": lambda: self._all_reduce(4096),
        }
        for nbytes in SIZES:
            found[f"all_reduce {human(nbytes)}"] = lambda n=nbytes: self._large(n, resident=False)
            found[f"resident all_reduce {human(nbytes)}"] = lambda n=nbytes: self._large(n, resident=True)
        for name in OPERATIONS:
            found[name] = lambda name=name: self._other(name)
        return found

    async def _large(self, nbytes: int, *, resident: bool) -> float:
        return nbytes / await self._all_reduce(nbytes, resident=resident)

    async def _all_reduce(self, nbytes: int, *, resident: bool = False) -> float:
        x = await self._array(nbytes, resident=resident)
        return await self._measure(lambda: self._group.all_reduce(x), iterations(nbytes))

    async def _array(self, nbytes: int, *, resident: bool) -> np.ndarray:
        """Zeros, whose pages are there already in later repetitions."""
        if (nbytes, resident) not in self._arrays:
            count = nbytes // 4
            x = await self._group.empty(count, np.float32) if resident else np.empty(count, np.float32)
            self._arrays[nbytes, resident] = x
        await psf.compute(self._arrays[nbytes, resident].fill, 0)
        return self._arrays[nbytes, resident]

    async def _other(self, name: str) -> float:
        x = await self._array(OPERATION_BYTES, resident=False)
        part = np.zeros(x.size // self._group.size, np.float32)
        run = {
            "broadcast": lambda: self._group.broadcast(x, 0),
            "all_gather": lambda: self._group.all_gather(part),
            "reduce_scatter": lambda: self._group.reduce_scatter(x),
            "all_to_all": lambda: self._group.all_to_all(x),
        }[name]
        return OPERATION_BYTES / await self._measure(run, iterations(OPERATION_BYTES))

    async def _measure(self, run: Callable[[], Awaitable[object]], times: int) -> float:
        """Seconds an operation, on the slowest rank."""
        for _ in range(2):
            await run()
        await self._group.barrier()
        start = time.perf_counter()
        for _ in range(times):
            await run()
        took = np.array((time.perf_counter() - start) / times)
        await self._group.all_reduce(took, psf.ReduceOp.MAX)
        return float(took)


def cases(group: psf.ProcessGroup) -> Cases:
    """What one rank of ours runs."""
    return Bench(group).cases()


def measured(part: str, args: argparse.Namespace) -> tuple[Figures, list[Row]]:
    """One part of the table."""
    size, lanes, transport, rows = PARTS[part]
    rows = [row for row in rows if re.search(args.only, row.label)]
    environment = {"PSF_BENCH_TRANSPORT": transport} | ({"PSF_LANES": lanes} if lanes else {})
    same = {row.case: row.case.removeprefix("resident ") for row in rows}
    sides = [
        ours(__file__, str(size), environment=environment),
        *theirs(args, "torch", "_torch_collectives.py", str(size), name="gloo", same=same),
    ]
    return measure(sides, rows, args.reps), rows


def main() -> int:
    words = "rows in whose name this expression is found"
    args = parse(__doc__, flags={"--only": {"default": "", "help": words}})
    if args.side:
        asyncio.run(serve_ranks(int(args.side), cases))
        return 0
    good = True
    for part in PARTS:
        figures, rows = measured(part, args)
        if rows:
            print(f"\n{part}")
            good = report(figures, rows, peers=["gloo"]) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
