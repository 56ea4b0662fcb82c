"""The peer's side of benchmarks/ray_rpc.py: calls of Ray's actors, by an interpreter with ray."""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_memory_monitor_refresh_ms": "0"}

import ray

from benchmarks._host import pin_threads, set_allocator
from benchmarks._side import percentile, serve_side

CALLS, WINDOW, ROUNDS = 600, 64, 30


class Echo:
    """An actor."""

    def __init__(self) -> None:
        pin_threads(1)

    def echo(self, x: int) -> int:
        return x


class AsyncEcho:
    """One with an event loop."""

    def __init__(self) -> None:
        pin_threads(1)

    async def echo(self, x: int) -> int:
        return x


def one_by_one(actor: Any) -> Callable[[], float]:
    def run() -> float:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            ray.get(actor.echo.remote(1))
            times.append(time.perf_counter() - start)
        return percentile(times, 0.5)

    return run


def in_flight(actor: Any) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(ROUNDS):
            ray.get([actor.echo.remote(1) for _ in range(WINDOW)])
        return ROUNDS * WINDOW / (time.perf_counter() - start)

    return run


if __name__ == "__main__":
    set_allocator()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    sync, loop = (ray.remote(num_cpus=0)(kind).remote() for kind in (Echo, AsyncEcho))
    ray.get([sync.echo.remote(1), loop.echo.remote(1)])
    pin_threads(0)
    try:
        serve_side(
            {
                "call": one_by_one(sync),
                "call_async": one_by_one(loop),
                "inflight": in_flight(sync),
                "inflight_async": in_flight(loop),
            }
        )
    finally:
        ray.shutdown()
