"""Dropout."""

from __future__ import annotations

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.module import Module


class Dropout(Module):
    """In training, zeroes elements with probability `p` and scales the others by 1 / (1 - p).

    Srivastava et al., JMLR 15, 2014. The masks come from the generator that `manual_seed` sets.
    """

    def __init__(self, p: float = 0.5):
        if not 0 <= p <= 1:
            raise ArgumentError(f"Dropout: p must lie in [0, 1], not {p}")
        self.p = p

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"p={self.p}"
