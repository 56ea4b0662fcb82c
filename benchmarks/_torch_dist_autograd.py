"""The peer's side of benchmarks/dist_autograd.py: torch's distributed autograd and optimizer.

python _torch_dist_autograd.py
"""

import itertools
import time

import torch
from torch import nn, optim
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer
from torch.nn import functional as F

from benchmarks._torch import serve_agents

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


if __name__ == "__main__":
    serve_agents(["driver", "worker0", "worker1"], {"mlp": mlp, "small": small}, pinned=False)
