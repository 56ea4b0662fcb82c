"""The peer's side of benchmarks/pipeline.py: torch.distributed.pipelining over gloo, two ranks.

python _torch_pipeline.py
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from benchmarks._pipeline import BATCH, LAYERS, MICROBATCHES, RANKS, SCHEDULES, STEPS, WIDTH, case
from benchmarks._torch import serve_ranks

KINDS = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "eager-1f1b": lambda stage, m, **options: ScheduleInterleaved1F1B([stage], m, **options),  # its warm-up
}


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


if __name__ == "__main__":
    serve_ranks(RANKS, cases)
