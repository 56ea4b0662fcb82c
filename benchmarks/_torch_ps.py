"""The peer's side of benchmarks/parameter_server.py: a parameter server over torch.distributed.rpc.

python _torch_ps.py default|uv      (uv: TCP only, no shared memory)

The server does `p -= lr * g` or a fused-foreach Adam step, and returns the flat parameters, in one call.
"""

import os
import sys
import time

import torch
from torch.distributed import rpc

from benchmarks._torch import serve_agents

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


if __name__ == "__main__":
    cases = {name + kind: case(kind == "adam") for name in ("", "tcp_") for kind in ("sgd", "adam")}
    serve_agents(["client", "server"], cases, sys.argv[1])
