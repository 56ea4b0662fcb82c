"""The peer's side of benchmarks/rpc.py: torch.distributed.rpc on loopback, by an interpreter with torch.

python _torch_rpc.py default|uv      (uv: TCP only, no shared memory)
"""

import os
import sys
import tempfile
import time
from multiprocessing import get_context

import torch
from torch.distributed import rpc

from benchmarks._peer import percentile, pin, serve_side, set_allocator

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


def join(rank: int, transport: str, meeting: str) -> None:
    set_allocator()
    pin(rank)
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=120)
    if transport == "uv":
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{meeting}", rpc_timeout=120, _transports=["uv"], _channels=["basic"]
        )
    rpc.init_rpc("client" if rank == 0 else "server", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        cases = {"latency": latency, "inflight": inflight, "rref": rref}
        serve_side(cases | {"push": push, "push_tcp": push, "latency_tcp": latency})
    rpc.shutdown()


if __name__ == "__main__":
    transport = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        server = get_context("spawn").Process(target=join, args=(1, transport, meeting))
        server.start()
        join(0, transport, meeting)
        server.join()
