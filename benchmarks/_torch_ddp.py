"""The peer's side of benchmarks/ddp.py: torch's DistributedDataParallel over gloo, two ranks.

python _torch_ddp.py
"""

import itertools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from benchmarks._ranks import BATCH, MODELS
from benchmarks._torch import serve_ranks


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def steps(sizes: list[int], count: int, *, together: bool) -> float:
    """Steps a second."""
    model = mlp(sizes)
    net = nn.parallel.DistributedDataParallel(model) if together else model
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y, loss = torch.randn(BATCH, sizes[0]), torch.randint(0, sizes[-1], (BATCH,)), nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    return count / (time.perf_counter() - start)


def cases() -> dict[str, Callable[[], float]]:
    found = {}
    for name, (sizes, count) in MODELS.items():
        found[name] = lambda s=sizes, n=count: steps(s, n, together=True)
        found[f"{name} alone"] = lambda s=sizes, n=count: steps(s, n, together=False)
    return found


if __name__ == "__main__":
    serve_ranks(2, cases)
