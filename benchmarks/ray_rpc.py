"""Methods of an object in another process against Ray's actors: one by one, and 64 in flight.

    python benchmarks/ray_rpc.py --ray-python /path/to/python [--reps 5]

Ours is an RRef on a worker of a local cluster, called as users call it. Neither side is pinned: Ray's work is
spread over processes of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import psframework as psf
from benchmarks._peer import Row, Side, has, interleave, percentile, report, serve_side, set_allocator
from psframework.rpc.process import SWITCH_SECONDS

CALLS, WINDOW, ROUNDS = 600, 64, 100
ROWS = (
    Row("call", "method, one by one, p50", "us", 1e6, 0.35, lower_is_better=True),
    Row("call_async", "async method, one by one, p50", "us", 1e6, 0.35, lower_is_better=True),
    Row("inflight", "method, 64 in flight", "calls/s", 1.0, 5.0),
    Row("inflight_async", "async method, 64 in flight", "calls/s", 1.0, 5.0),
)


@psf.remote
class Echo:
    """What Ray's actors are, here."""

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


class Ours:
    """This process as the client of a worker: one loop, driven one repetition at a time."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._stack = contextlib.AsyncExitStack()
        self.echo: psf.RRef = runner.run(self._start())

    async def _start(self) -> psf.RRef:
        local = await self._stack.enter_async_context(psf.local_cluster(workers=1))
        cluster = await self._stack.enter_async_context(psf.connect(local.address))
        echo = cluster.remote("worker-0", Echo)
        await echo.confirmed_by_owner()
        return echo

    def case(self, body: Callable[[Call], Coroutine[Any, Any, float]], call: Call) -> Callable[[], float]:
        return lambda: self._runner.run(body(call))

    def end(self) -> None:
        self._runner.run(self._stack.aclose())


def run_side() -> None:
    """Our side."""
    set_allocator()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner() as runner:
        ours = Ours(runner)
        sync, loop = (lambda: ours.echo.rpc_async().echo(1)), (lambda: ours.echo.rpc_async().echo_async(1))
        serve_side(
            {
                "call": ours.case(one_by_one, sync),
                "call_async": ours.case(one_by_one, loop),
                "inflight": ours.case(in_flight, sync),
                "inflight_async": ours.case(in_flight, loop),
            }
        )
        ours.end()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    default = os.environ.get("PSF_RAY_PYTHON") or (sys.executable if has("ray") else "")
    parser.add_argument("--ray-python", default=default, help="interpreter that has ray, for the peer's side")
    args = parser.parse_args()
    if args.side:
        run_side()
        return 0
    sides = [Side("psframework", [sys.executable, __file__, "--side"], {"PSF_LOG_LEVEL": "error"})]
    if args.ray_python:
        sides.append(Side("ray", [args.ray_python, str(Path(__file__).with_name("_ray_rpc.py"))]))
    else:
        print("no ray: pass --ray-python, or set PSF_RAY_PYTHON, to compare")
    for side in sides:
        side.__enter__()
    try:
        figures = interleave(sides, [row.case for row in ROWS], args.reps)
    finally:
        for side in sides:
            side.__exit__(None, None, None)
    return 0 if report(figures, ROWS, ours="psframework", peers=["ray"]) else 1


if __name__ == "__main__":
    sys.exit(main())
