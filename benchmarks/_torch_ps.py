"""The peer's side of benchmarks/parameter_server.py: a parameter server over torch.distributed.rpc.

python _torch_ps.py default|uv      (uv: TCP only, no shared memory)

The server does `p -= lr * g` or a fused-foreach Adam step, and returns the flat parameters, in one call.
"""

import os
import sys
import tempfile
import time
from multiprocessing import get_context

import torch
from torch.distributed import rpc

from benchmarks._peer import pin, serve_side, set_allocator

N = int(os.environ.get("PSF_BENCH_PARAMETERS", "25000000"))
CALLS = 6
server: dict = {}


def setup(adam: bool) -> None:
    server["p"] = torch.zeros(N, requires_grad=True)
    kind = torch.optim.Adam if adam else torch.optim.SGD
    server["opt"] = kind([server["p"]], lr=1e-3)


def push_pull(gradient: torch.Tensor) -> torch.Tensor:
    server["p"].grad = gradient
    server["opt"].step()
    return server["p"].detach()


def case(adam: bool):
    def run() -> float:
        rpc.rpc_sync("server", setup, (adam,))
        gradient = torch.ones(N)
        rpc.rpc_sync("server", push_pull, (gradient,))
        start = time.perf_counter()
        for _ in range(CALLS):
            rpc.rpc_sync("server", push_pull, (gradient,))
        return (time.perf_counter() - start) / CALLS

    return run


def join(rank: int, transport: str, meeting: str) -> None:
    set_allocator()
    pin(rank)
    torch.set_num_threads(1)
    extra = {"_transports": ["uv"], "_channels": ["basic"]} if transport == "uv" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=120, **extra)
    rpc.init_rpc("client" if rank == 0 else "server", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        serve_side({name + kind: case(kind == "adam") for name in ("", "tcp_") for kind in ("sgd", "adam")})
    rpc.shutdown()


if __name__ == "__main__":
    transport = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        child = get_context("spawn").Process(target=join, args=(1, transport, meeting))
        child.start()
        join(0, transport, meeting)
        child.join(10)
        if child.is_alive():
            child.kill()
