"""The peer's side of benchmarks/dist_autograd.py: torch's distributed autograd and optimizer.

python _torch_dist_autograd.py
"""

import itertools
import os
import tempfile
import time
from multiprocessing import get_context

import torch
from torch import nn, optim
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer
from torch.nn import functional as F

from benchmarks._peer import serve_side, set_allocator

STEPS, BATCH = 50, 64


class Half(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

    def parameter_rrefs(self) -> list[rpc.RRef]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def steps(sizes: list[list[int]]) -> float:
    halves = [rpc.remote(f"worker{i}", Half, (part,)) for i, part in enumerate(sizes)]
    parameters = [rref for half in halves for rref in half.rpc_sync().parameter_rrefs()]
    optimizer = DistributedOptimizer(optim.SGD, parameters, lr=0.01)
    x, y = torch.randn(BATCH, sizes[0][0]), torch.randint(0, sizes[-1][-1], (BATCH,))

    def step() -> None:
        with autograd.context() as context:
            hidden = halves[0].rpc_sync().forward(x)
            loss = F.cross_entropy(halves[1].rpc_sync().forward(hidden), y)
            autograd.backward(context, [loss])
            optimizer.step(context)

    for _ in range(5):
        step()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - start) / STEPS


def mlp() -> float:
    return steps([[784, 512], [512, 512, 10]])


def small() -> float:
    return steps([[32, 32], [32, 32, 10]])


def join(rank: int, meeting: str) -> None:
    set_allocator()
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=120)
    name = "driver" if rank == 2 else f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=3, rpc_backend_options=options)
    if rank == 2:
        serve_side({"mlp": mlp, "small": small})
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        workers = [get_context("spawn").Process(target=join, args=(rank, meeting)) for rank in range(2)]
        for worker in workers:
            worker.start()
        join(2, meeting)
        for worker in workers:
            worker.join()
