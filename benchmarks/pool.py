"""The thread pool of sync remote functions against `loop.run_in_executor`: tiny functions, many at once.

python benchmarks/pool.py [--reps 5]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._peer import parse
from benchmarks._side import Figures
from benchmarks._table import Row, report
from psframework.rpc.functions.pool import ThreadPool
from psframework.rpc.process import SWITCH_SECONDS

CALLS, BATCH = 20_000, 1000
ROWS = (Row("many", f"empty function, {BATCH} at once", "calls/s", 1.0, 10.0),)


def nothing() -> None:
    pass


async def rate(submit: Callable[[], asyncio.Future[None]]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS // BATCH):
        for future in [submit() for _ in range(BATCH)]:
            await future
    return CALLS / (time.perf_counter() - start)


async def measure(reps: int) -> Figures:
    loop, pool = asyncio.get_running_loop(), ThreadPool()
    sides = {
        "psframework": lambda: pool.submit(nothing),
        "run_in_executor": lambda: loop.run_in_executor(None, nothing),
    }
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for rep in range(reps + 1):
        for name, submit in sides.items():
            value = await rate(submit)
            if rep:  # the first warms up
                figures[name].append(value)
    await pool.close()
    return {"many": figures}


def main() -> int:
    args = parse(__doc__, peers=())
    sys.setswitchinterval(SWITCH_SECONDS)
    return 0 if report(asyncio.run(measure(args.reps)), ROWS, peers=["run_in_executor"]) else 1


if __name__ == "__main__":
    sys.exit(main())
