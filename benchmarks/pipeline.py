"""A step of a pipeline of two stages, a core each, against torch.distributed.pipelining over gloo.

    python benchmarks/pipeline.py --torch-python /path/to/python [--reps 5]

An MLP of equal layers trains by SGD on batches of 512. The ideal step is what it would be
if data took no time: (m + p - 1) / m times the computation of the busiest stage in that step. "bubble" is
the share of the time that stages stand idle, beside the schedule's own (p - 1) / (m + p - 1), and beside that
of the same actions, which are not equally long: the first stage has no gradient to send back.
"No commits" is the same without the state of each stage being sent to another service after each step, which
torch has no counterpart of. Eager 1F1B runs against torch's interleaved 1F1B with one stage a rank, whose
warm-up is the same. "Driver" is the part of a step, with micro-batches of a row, in which no stage has begun
yet or all have ended: it feeds and collects then.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import psframework as psf
import psframework.nn.functional as F
from benchmarks._host import pin_threads
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._pipeline import BATCH, LAYERS, MICROBATCHES, RANKS, SCHEDULES, STEPS, WIDTH, case
from benchmarks._ranks import lead_async
from benchmarks._table import Row, report
from psframework import nn, optim
from psframework.pipeline.schedule import Action, Kind
from psframework.pipeline.timeline import bubble
from psframework.pipeline.timetable import ideal_bubble, simulate


def busiest(pipe: Any) -> float:
    """Seconds that the busiest stage computed in the newest step."""
    busy = dict.fromkeys(range(RANKS), 0.0)
    for span in pipe.spans:
        busy[span.rank] += span.ended - span.began
    return max(busy.values())


def of_ideal(pipe: Any, seconds: float) -> float:
    """A step over the ideal one."""
    return seconds / (busiest(pipe) * (8 + RANKS - 1) / 8)


def of_bubble(pipe: Any, seconds: float) -> float:
    """Its bubble over the ideal one."""
    return float(pipe.bubble / ideal_bubble(RANKS, 8))


def of_actions(pipe: Any, seconds: float) -> float:
    """Its bubble over that of the same actions, each as long as it was, if data took no time."""
    spans = sorted((span for span in pipe.spans if span.microbatch >= 0), key=attrgetter("began"))
    times = {Action(Kind(span.kind), span.stage, span.microbatch): span.ended - span.began for span in spans}
    plans = [[action for action in times if action.stage == rank] for rank in range(RANKS)]
    return bubble(spans) / simulate(plans, times.__getitem__).bubble


FIGURES = {
    "step / ideal step": of_ideal,
    "bubble / ideal bubble": of_bubble,
    "bubble / that of its actions": of_actions,
}
TINY = 32  # micro-batches of a row each
MOST = 4
ROWS = [
    Row(case(schedule, m), f"{schedule}, {m} micro-batches", "steps/s", 1.0, 1.0)
    for schedule in SCHEDULES
    for m in MICROBATCHES
]
OURS = [
    Row("1f1b m8 no commits", "1f1b, 8 micro-batches, no commits", "steps/s"),
    Row("zb-h1 m8", "zb-h1, 8 micro-batches", "steps/s"),
    *(
        Row(f"{schedule} {name}", f"{schedule}, {name}", "x", 1.0, None, lower_is_better=True, limit=1.1)
        for schedule in SCHEDULES
        for name in FIGURES
    ),
    Row("driver", "driver, a micro-batch", "us", 1e6, None, lower_is_better=True, limit=300.0),
]


class Bench:
    """Our side."""

    def __init__(self, cluster: psf.Cluster) -> None:
        self._cluster = cluster

    def cases(self) -> dict[str, Callable[[], Awaitable[float]]]:
        """By the names of the rows."""
        found: dict[str, Callable[[], Awaitable[float]]] = {}
        for schedule in (*SCHEDULES, "zb-h1"):
            for m in MICROBATCHES:
                found[case(schedule, m)] = lambda s=schedule, m=m: self._steps(s, m)
            for name, figure in FIGURES.items():
                found[f"{schedule} {name}"] = lambda s=schedule, f=figure: self._looked_at(s, f)
        found["1f1b m8 no commits"] = lambda: self._steps("1f1b", 8, commit_every=1 << 20)
        found["driver"] = self._driver
        return found

    async def _open(self, model: nn.Sequential, schedule: str, microbatches: int, **options: Any) -> Any:
        return await self._cluster.pipeline(
            model,
            stages=RANKS,
            loss=F.mse_loss,
            optimizer=optim.SGD(lr=0.01),
            schedule=schedule,
            microbatches=microbatches,
            **options,
        )

    async def _steps(self, schedule: str, microbatches: int, **options: Any) -> float:
        """Steps a second."""
        x, y = batch(BATCH, WIDTH)
        async with await self._open(mlp(WIDTH, LAYERS), schedule, microbatches, **options) as pipe:
            for _ in range(2):
                await pipe.step(x, y)
            start = time.perf_counter()
            for _ in range(STEPS):
                await pipe.step(x, y)
            return STEPS / (time.perf_counter() - start)

    async def _looked_at(self, schedule: str, figure: Callable[[Any, float], float]) -> float:
        """The median of a figure over some steps of 8 micro-batches."""
        x, y = batch(BATCH, WIDTH)
        found = []
        async with await self._open(mlp(WIDTH, LAYERS), schedule, 8, commit_every=1 << 20) as pipe:
            for _ in range(STEPS + 2):
                start = time.perf_counter()
                await pipe.step(x, y)
                found.append(figure(pipe, time.perf_counter() - start))
        return statistics.median(found[2:])

    async def _driver(self) -> float:
        """Seconds before the first stage begins and after the last has ended, for each micro-batch."""
        x, y = batch(TINY, MOST)
        found = []
        async with await self._open(mlp(MOST, RANKS), "1f1b", TINY, commit_every=1 << 20) as pipe:
            for _ in range(30):
                start = time.perf_counter()
                await pipe.step(x, y)
                found.append((time.perf_counter() - start - ran(pipe)) / TINY)
        return statistics.median(found[5:])


def mlp(width: int, layers: int) -> nn.Sequential:
    """Equal layers with ReLU."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))


def batch(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, width)).astype(np.float32), rng.normal(size=(rows, width)).astype(
        np.float32
    )


def ran(pipe: Any) -> float:
    """Seconds from the first action of the newest step to its last."""
    return float(max(span.ended for span in pipe.spans) - min(span.began for span in pipe.spans))


async def run_side() -> None:
    """Our side: a local cluster, and this process as driver."""
    psf.manual_seed(0)
    async with psf.local_cluster(stages=RANKS) as local, psf.connect(local.address) as cluster:
        for rank in range(RANKS):
            pin_threads(rank, local.processes[f"stage-{rank}"].pid)
        await lead_async([], Bench(cluster).cases())


def main() -> int:
    args = parse(__doc__)
    if args.side:
        asyncio.run(run_side())
        return 0
    sides = [ours(__file__), *theirs(args, "torch", "_torch_pipeline.py")]
    figures = measure(sides, ROWS, args.reps, OURS)
    return 0 if report(figures, [*ROWS, *OURS]) else 1


if __name__ == "__main__":
    sys.exit(main())
