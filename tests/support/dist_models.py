"""Parts of models that tests keep in workers: `psf.local_cluster(workers=n, imports=["dist_models"])`."""

import asyncio
from typing import Any

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn


@psf.remote
class Part(nn.Module):
    """tanh(x w + b), in float64."""

    def __init__(self, seed: int, n_in: int, n_out: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.w = nn.Parameter(rng.standard_normal((n_in, n_out)) / n_in**0.5)
        self.b = nn.Parameter(rng.standard_normal(n_out) / 10)

    def forward(self, x: Any) -> Any:
        return (psf.ops.matmul(x, self.w) + self.b).tanh()

    def take(self, values: list[Any]) -> None:
        self.w.data, self.b.data = (array.copy() for array in values)


@psf.remote
class Rows(nn.Module):
    """A table of rows, with sparse gradients."""

    def __init__(self, rows: int = 6, size: int = 4) -> None:
        super().__init__()
        self.table = nn.Parameter(np.random.default_rng(7).standard_normal((rows, size)))

    def forward(self, ids: Any) -> Any:
        return F.embedding(ids, self.table, sparse=True)


@psf.remote
class Frozen(Part):
    """Nothing to train."""

    def __init__(self) -> None:
        super().__init__(0, 2, 2)
        self.requires_grad_(False)


@psf.remote
def weight_of(part: psf.RRef) -> Any:
    """The parameter itself, where it lives."""
    return part.local_value().w


@psf.remote
def constant() -> Any:
    return psf.tensor(np.zeros(2))


@psf.remote
def computed() -> Any:
    return psf.tensor(np.zeros(2), requires_grad=True) * 2


@psf.remote
def nothing() -> dict[str, int]:
    return {}


@psf.remote
def part_that_fails() -> Part:
    raise ValueError("no room for a part")


_comes: dict[str, asyncio.Event] = {}


@psf.remote
async def part_that_comes_late(name: str) -> Part:
    await _comes.setdefault(name, asyncio.Event()).wait()
    return Part(0, 5, 3)


@psf.remote
async def let_it_come(name: str) -> None:
    _comes.setdefault(name, asyncio.Event()).set()
