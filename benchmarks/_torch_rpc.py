"""The peer's side of benchmarks/rpc.py: torch.distributed.rpc on loopback, by an interpreter with torch.

python _torch_rpc.py default|uv      (uv: TCP only, no shared memory)
"""

import sys
import time

import torch
from torch.distributed import rpc

from benchmarks._side import percentile
from benchmarks._torch import serve_agents

CALLS, WINDOW, MIB = 1000, 64, 1 << 20


def echo(x: torch.Tensor) -> torch.Tensor:
    return x


def sink(x: torch.Tensor) -> None:
    return None


def latency() -> float:
    x, times = torch.tensor(1.0), []
    for _ in range(CALLS):
        start = time.perf_counter()
        rpc.rpc_sync("server", echo, (x,))
        times.append(time.perf_counter() - start)
    return percentile(times, 0.5)


def inflight() -> float:
    x, start = torch.tensor(1.0), time.perf_counter()
    for _ in range(2000 // WINDOW):
        torch.futures.wait_all([rpc.rpc_async("server", echo, (x,)) for _ in range(WINDOW)])
    return 2000 // WINDOW * WINDOW / (time.perf_counter() - start)


def rref() -> float:
    x, times = torch.tensor(1.0), []
    for _ in range(CALLS):
        start = time.perf_counter()
        rpc.remote("server", echo, (x,)).to_here()
        times.append(time.perf_counter() - start)
    return percentile(times, 0.5)


def push() -> float:
    x, n = torch.ones(16 * MIB), 6
    start = time.perf_counter()
    for _ in range(n):
        rpc.rpc_sync("server", sink, (x,))
    return n * 64 * MIB / (time.perf_counter() - start)


if __name__ == "__main__":
    cases = {"latency": latency, "inflight": inflight, "rref": rref}
    cases |= {"push": push, "push_tcp": push, "latency_tcp": latency}
    serve_agents(["client", "server"], cases, sys.argv[1])
