"""Distributed autograd and optimizer against torch's: an MLP split over two workers, driven by a third.

    python benchmarks/dist_autograd.py --torch-python /path/to/python [--reps 5]

A step is forward, backward and an SGD step. "alone" is the same model in one process: what remains is the
price of distribution, of which the budget allows 250 us for each message.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import itertools

import psframework as psf
import psframework.nn.functional as F
from benchmarks._host import set_allocator
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._ranks import Cases, lead_async
from benchmarks._side import OURS, Figures
from benchmarks._table import Row, report
from psframework import nn, optim

STEPS, BATCH = 50, 64
MLP, SMALL = ([784, 512], [512, 512, 10]), ([32, 32], [32, 32, 10])
# Two calls; three questions and three gradients, since the hidden layer passes through the driver; two steps;
# two releases. Each has its answer.
MESSAGES = 24
MESSAGE_SECONDS = 250e-6
BOTH = (
    Row("mlp", "784-512 | 512-512-10, batch 64, a step", "ms", 1e3, 1.0, lower_is_better=True),
    Row("small", "32-32 | 32-32-10, batch 64, a step", "ms", 1e3, 1.0, lower_is_better=True),
)
OWN = (
    Row("mlp_alone", "the first in one process", "ms", 1e3),
    Row("small_alone", "the second in one process", "ms", 1e3),
)


@psf.remote
class Half(nn.Module):
    """Linear layers with ReLU."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        """(batch, in) to (batch, out)."""
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


def batch(sizes: tuple[list[int], list[int]]) -> tuple[psf.Tensor, np.ndarray]:
    """Random inputs and labels."""
    rng = np.random.default_rng(0)
    x = psf.tensor(rng.normal(size=(BATCH, sizes[0][0])).astype(np.float32))
    return x, rng.integers(0, sizes[-1][-1], BATCH)


async def distributed(cluster: psf.Cluster, sizes: tuple[list[int], list[int]]) -> float:
    """Seconds a step over two workers."""
    first, second = (cluster.remote(f"worker-{i}", Half, args=(part,)) for i, part in enumerate(sizes))
    optimizer = psf.DistributedOptimizer(optim.SGD(lr=0.01), [first, second])
    x, y = batch(sizes)

    async def step() -> None:
        async with cluster.dist_autograd() as context:
            hidden = await first.rpc_async().forward(x)
            loss = F.cross_entropy(await second.rpc_async().forward(hidden), y)
            await context.backward([loss])
            await optimizer.step(context)

    return await timed(step)


async def alone(sizes: tuple[list[int], list[int]]) -> float:
    """Seconds a step of the same model here."""
    first, second = (Half(part) for part in sizes)
    optimizer = optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    x, y = batch(sizes)

    async def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(second(first(x)), y).backward()
        optimizer.step()

    return await timed(step)


async def timed(step: Callable[[], Awaitable[None]]) -> float:
    """Seconds a step, after some to warm up."""
    for _ in range(5):
        await step()
    start = time.perf_counter()
    for _ in range(STEPS):
        await step()
    return (time.perf_counter() - start) / STEPS


async def run_side() -> None:
    """Our side: a local cluster, and this process as the driver."""
    set_allocator()
    async with psf.local_cluster(workers=2) as local, psf.connect(local.address) as cluster:
        cases: Cases = {
            "mlp": lambda: distributed(cluster, MLP),
            "small": lambda: distributed(cluster, SMALL),
            "mlp_alone": lambda: alone(MLP),
            "small_alone": lambda: alone(SMALL),
        }
        await lead_async([], cases)


def price_is_met(figures: Figures, case: str) -> bool:
    """Says what distribution adds to a step."""
    apart, together = (statistics.median(figures[name][OURS]) for name in (case, f"{case}_alone"))
    extra, allowed = apart - together, MESSAGES * MESSAGE_SECONDS
    verdict = "met" if extra <= allowed else "NOT MET"
    print(
        f"{case}: {extra * 1e3:.2f} ms more than alone; "
        f"{MESSAGES} messages may cost {allowed * 1e3:.1f} ms: {verdict}"
    )
    return extra <= allowed


def main() -> int:
    args = parse(__doc__)
    if args.side:
        asyncio.run(run_side())
        return 0
    sides = [ours(__file__), *theirs(args, "torch", "_torch_dist_autograd.py")]
    figures = measure(sides, BOTH, args.reps, OWN)
    good = report(figures, [*BOTH, *OWN])
    return 0 if all([good, *(price_is_met(figures, row.case) for row in BOTH)]) else 1


if __name__ == "__main__":
    sys.exit(main())
