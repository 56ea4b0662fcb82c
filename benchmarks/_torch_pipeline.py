"""The peer's side of benchmarks/pipeline.py: torch.distributed.pipelining over gloo, two ranks.

python _torch_pipeline.py
"""

import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks._peer import pin, set_allocator
from benchmarks._pipeline import BATCH, LAYERS, MICROBATCHES, RANKS, SCHEDULES, STEPS, WIDTH, case
from benchmarks._ranks import follow, lead, ranks

KINDS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def join(rank: int, size: int, meeting: str) -> None:
    set_allocator()
    pin(rank)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)


def steps(schedule: str, microbatches: int) -> float:
    """Steps a second."""
    rank = dist.get_rank()
    own = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS // RANKS)]
    module = nn.Sequential(*own)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
    plan = KINDS[schedule](stage, microbatches, loss_fn=nn.MSELoss())
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            plan.step(x)
        else:
            plan.step(target=y)
        optimizer.step()

    for _ in range(2):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    dist.barrier()
    return STEPS / (time.perf_counter() - start)


def cases() -> dict[str, Callable[[], float]]:
    return {case(s, m): lambda s=s, m=m: steps(s, m) for s in SCHEDULES for m in MICROBATCHES}


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
