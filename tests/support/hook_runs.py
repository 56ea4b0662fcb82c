"""Hooks on made-up gradients: several steps on several ranks, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rank_tasks import RankGroup, on_ranks

import psframework as psf
from psframework.backend import Array
from psframework.ddp.hooks import Bucket, run_hook

SHAPES = {"a": (60, 40), "b": (40,), "c": (8, 4, 3, 3), "d": ()}


@dataclass
class Run:
    """What one rank saw.

    Attributes:
        hook: after the last step.
        gradients: sum of this rank's own.
        averages: what was in the buffer after each step.
        given: bytes that the rank gave to collectives.
    """

    hook: Any
    gradients: Array
    averages: list[Array]
    given: int

    def residual(self, size: int) -> Array:
        """All residuals as one array like the bucket."""
        flat = np.zeros(size)
        for start, name in zip(starts(), SHAPES):
            piece = self.hook.residuals().get(name, np.zeros(0))
            flat[start : start + piece.size] = piece.reshape(-1)
        return flat


def starts() -> list[int]:
    """Where gradients begin: there is room between them."""
    ends = np.cumsum([int(np.prod(shape)) + 2 for shape in SHAPES.values()])
    return [0, *ends[:-1].tolist()]


def bucket(buffer: Array, group: Any, index: int = 0) -> Bucket:
    """A bucket of parameters of SHAPES."""
    parameters = [psf.nn.Parameter(np.zeros(shape, buffer.dtype)) for shape in SHAPES.values()]
    return Bucket(index, buffer, parameters, list(SHAPES), starts(), group)


def gradients(dtype: Any, rank: int, step: int) -> Array:
    """What the rank's backward of that step left in the bucket."""
    rng = np.random.default_rng((rank, step))
    buffer = np.zeros(starts()[-1] + 3, dtype)
    for view in bucket(buffer, None).views():
        view[...] = rng.standard_normal(view.shape)
    return buffer


def run(
    make: Callable[[], Any],
    size: int = 3,
    steps: Sequence[int] = range(6),
    dtype: Any = np.float32,
    spoil: Callable[[Array, int, int], None] = lambda buffer, rank, step: None,
) -> list[Run]:
    """Steps of a hook on all ranks.

    Args:
        make: the hook, on each rank.
        size: number of ranks.
        steps: their numbers, which gradients depend on.
        dtype: of the gradients.
        spoil: changes a rank's gradients of a step.
    """

    async def rank(group: RankGroup) -> Run:
        run = Run(make(), np.zeros(starts()[-1] + 3), [], 0)
        for step in steps:
            buffer = gradients(dtype, group.rank, step)
            spoil(buffer, group.rank, step)
            run.gradients = run.gradients + buffer
            await run_hook(run.hook, bucket(buffer, group))
            run.averages.append(buffer)
        run.given = group.given
        return run

    runs = asyncio.run(on_ranks(size, rank))
    for other in runs[1:]:
        for mine, theirs in zip(runs[0].averages, other.averages, strict=True):
            assert mine.tobytes() == theirs.tobytes(), "ranks differ in a bit"
    return runs


def owed(runs: Sequence[Run]) -> Array:
    """Mean of all gradients, less what arrived and what is still to be sent: should be 0."""
    n = runs[0].gradients.size
    mean = np.mean([run.gradients for run in runs], axis=0)
    arrived = np.sum(runs[0].averages, axis=0, dtype=np.float64)
    rest: Array = mean - arrived - np.mean([run.residual(n) for run in runs], axis=0)
    return rest
