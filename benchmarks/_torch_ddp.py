"""The peer's side of benchmarks/ddp.py: torch's DistributedDataParallel over gloo, two ranks.

python _torch_ddp.py
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import nn

from benchmarks._peer import pin, set_allocator
from benchmarks._ranks import BATCH, MODELS, follow, lead, ranks

RANKS = 2


def join(rank: int, size: int, meeting: str) -> None:
    set_allocator()
    pin(rank)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)


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


def member(rank: int, size: int, pipe: Connection, meeting: str) -> None:
    join(rank, size, meeting)
    follow(pipe, cases())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        with ranks(member, RANKS, meeting) as pipes:
            join(0, RANKS, meeting)
            lead(pipes, cases())
