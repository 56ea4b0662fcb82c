"""Calls of another process against Ray's actors: one by one, and 64 in flight.

    python benchmarks/ray_rpc.py --ray-python /path/to/python [--reps 5]

Ours are a function of a worker of a local cluster, and methods of an RRef there. Callers are pinned to one
core, what they call to another; what else Ray runs is where it likes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import psframework as psf
from benchmarks._host import pin_threads, set_allocator
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._side import percentile, serve_side
from benchmarks._table import Row, report
from psframework.rpc.process import SWITCH_SECONDS

CALLS, WINDOW, ROUNDS = 600, 64, 100
ROWS = (
    Row("function", "function, one by one, p50", "us", 1e6, 0.35, lower_is_better=True),
    Row("function_inflight", "function, 64 in flight", "calls/s", 1.0, 5.0),
    Row("call", "method, one by one, p50", "us", 1e6, 0.35, lower_is_better=True),
    Row("call_async", "async method, one by one, p50", "us", 1e6, 0.35, lower_is_better=True),
    Row("inflight", "method, 64 in flight", "calls/s", 1.0, 5.0),
    Row("inflight_async", "async method, 64 in flight", "calls/s", 1.0, 5.0),
)


SAME = {"function": "call", "function_inflight": "inflight"}  # Ray has no functions there; its faster actor


@psf.remote
async def echo_function(x: int) -> int:
    """A function."""
    return x


@psf.remote
class Echo:
    """What Ray's actors are, here."""

    def __init__(self) -> None:
        pin_threads(1)

    def echo(self, x: int) -> int:
        return x

    async def echo_async(self, x: int) -> int:
        return x


Call = Callable[[], Awaitable[Any]]


async def one_by_one(call: Call) -> float:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await call()
        times.append(time.perf_counter() - start)
    return percentile(times, 0.5)


async def in_flight(call: Call) -> float:
    start = time.perf_counter()
    for _ in range(ROUNDS):
        for future in [call() for _ in range(WINDOW)]:
            await future
    return ROUNDS * WINDOW / (time.perf_counter() - start)


async def run_side() -> None:
    """Our side: a worker, and this process as its client."""
    async with psf.local_cluster(workers=1) as local, psf.connect(local.address) as cluster:
        echo = cluster.remote("worker-0", Echo)
        await echo.confirmed_by_owner()
        pin_threads(0)
        loop = asyncio.get_running_loop()

        def case(body: Callable[[Call], Coroutine[Any, Any, float]], call: Call) -> Callable[[], float]:
            return lambda: asyncio.run_coroutine_threadsafe(body(call), loop).result()

        function: Call = lambda: cluster.rpc_async("worker-0", echo_function, (1,))  # noqa: E731
        cases = {"function": case(one_by_one, function), "function_inflight": case(in_flight, function)}
        for suffix, call in (
            ("", lambda: echo.rpc_async().echo(1)),
            ("_async", lambda: echo.rpc_async().echo_async(1)),
        ):
            cases |= {f"call{suffix}": case(one_by_one, call), f"inflight{suffix}": case(in_flight, call)}
        await asyncio.to_thread(serve_side, cases)


def main() -> int:
    args = parse(__doc__, peers=["ray"])
    if args.side:
        set_allocator()
        sys.setswitchinterval(SWITCH_SECONDS)
        asyncio.run(run_side())
        return 0
    sides = [ours(__file__), *theirs(args, "ray", "_ray_rpc.py", same=SAME)]
    return 0 if report(measure(sides, ROWS, args.reps), ROWS, peers=["ray"]) else 1


if __name__ == "__main__":
    sys.exit(main())
