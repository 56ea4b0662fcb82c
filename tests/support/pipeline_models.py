"""Stages for pipelines, in float64; stage services import this."""

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn

WIDTH, CLASSES = 12, 5


@psf.remote
class Hidden(nn.Module):
    """A layer with an activation."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x).tanh()


@psf.remote
class Head(nn.Module):
    """The last layer."""

    def __init__(self, width: int = WIDTH, classes: int = CLASSES) -> None:
        super().__init__()
        self.layer = nn.Linear(width, classes, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return self.layer(x)


@psf.remote
class Dropped(nn.Module):
    """A layer that drops."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64)

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        return F.dropout(self.layer(x).tanh(), 0.5, self.training)


@psf.remote
class Faulty(nn.Module):
    """Fails on rows that hold a negative first number."""

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        if (x.data[:, 0] < 0).any():
            raise ValueError("a negative number")
        return x


def chain(stages: int) -> list[tuple[type[nn.Module], tuple[int, ...]]]:
    """So many stages."""
    return [(Hidden, ())] * (stages - 1) + [(Head, ())]  # type: ignore[list-item]


def data(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, WIDTH)), rng.integers(0, CLASSES, rows)
