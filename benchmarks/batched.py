"""Calls of a small model that `psf.batched` runs together, against the same calls one by one: 64 in flight.

    python benchmarks/batched.py [--reps 5]

A transformer of examples/batch_rpc.py's size classifies an image of 8 x 8 a call. The caller is pinned to one
core, the worker to another.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import psframework as psf
from benchmarks._host import pin_threads, set_allocator
from benchmarks._peer import engines, measure, parse
from benchmarks._ranks import lead_async
from benchmarks._table import Row, report
from psframework import nn

WORKER, CALLS, WINDOW, WIDTH, LAYERS = "worker-0", 1024, 64, 32, 4
ROWS = (Row("calls", "one image a call, 64 in flight", "calls/s", 1.0, 3.0),)


class Reader(nn.Module):
    """Images (n, 8, 8) -> scores (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.embedding = nn.Linear(8, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(8 * WIDTH, 10)

    def forward(self, images: np.ndarray) -> psf.Tensor:
        """Scores of the ten digits."""
        rows = self.encoder(self.embedding(images))
        return self.head(rows.reshape(len(images), -1))


model = Reader()


def classify(images: Sequence[np.ndarray]) -> np.ndarray:
    """The digits in images."""
    with psf.no_grad():
        return model(np.stack(images)).numpy().argmax(1)


@psf.remote
def alone(image: np.ndarray) -> int:
    """The digit in one image."""
    return int(classify([image])[0])


@psf.remote
@psf.batched(max_size=WINDOW)
def together(images: Sequence[np.ndarray]) -> np.ndarray:
    """The same, of all images that are asked about at this moment."""
    return classify(images)


async def rate(cluster: psf.Cluster, function: Callable[..., object]) -> float:
    """Calls a second."""
    image = np.zeros((8, 8), np.float32)
    start = time.perf_counter()
    for _ in range(CALLS // WINDOW):
        for future in [cluster.rpc_async(WORKER, function, (image,)) for _ in range(WINDOW)]:
            await future
    return CALLS / (time.perf_counter() - start)


async def run_side(name: str) -> None:
    """One way to call: a worker, and this process as its client."""
    set_allocator()
    function = {"batched": together, "one by one": alone}[name]
    async with psf.local_cluster(workers=1) as local, psf.connect(local.address) as cluster:
        pin_threads(1, local.processes[WORKER].pid)
        pin_threads(0)
        cases: dict[str, Callable[[], Awaitable[float]]] = {"calls": lambda: rate(cluster, function)}
        await lead_async([], cases)


def main() -> int:
    args = parse(__doc__, peers=())
    if args.side:
        asyncio.run(run_side(args.side))
        return 0
    sides = engines(args, __file__, ["batched", "one by one"])
    return 0 if report(measure(sides, ROWS, args.reps), ROWS, ours="batched", peers=["one by one"]) else 1


if __name__ == "__main__":
    sys.exit(main())
