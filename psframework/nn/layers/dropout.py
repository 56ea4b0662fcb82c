"""Dropout of elements and of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.module import Module


class Dropout(Module):
    """In training, zeroes elements with probability `p` and scales the others by 1 / (1 - p).

    Srivastava et al., JMLR 15, 2014.

    Args:
        p: in [0, 1].
        generator: decides what is dropped, so that this layer's masks depend on no other layer's; the one
            that `manual_seed` sets if None. Layers may share one.
    """

    _function: ClassVar[Callable[..., Tensor]] = staticmethod(F.dropout)

    def __init__(self, p: float = 0.5, *, generator: np.random.Generator | None = None):
        if not 0 <= p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p must lie in [0, 1], not {p}")
        self.p, self.generator = p, generator

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return type(self)._function(x, self.p, self.training, rng=self.generator)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"p={self.p}"


class Dropout1d(Dropout):
    """Drops whole channels of (batch, channels, length) or (channels, length) (arXiv:1411.4280)."""

    _function = staticmethod(F.dropout1d)


class Dropout2d(Dropout):
    """Drops whole channels of (batch, channels, rows, columns) or (channels, rows, columns)."""

    _function = staticmethod(F.dropout2d)
