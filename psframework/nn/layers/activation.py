"""Activations as modules."""

from __future__ import annotations

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.module import Module


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.relu(x)


class GELU(Module):
    """x times the normal distribution's cumulative function; approximate="tanh" for its approximation."""

    def __init__(self, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise ArgumentError(f'approximate must be "none" or "tanh", not {approximate!r}')
        self.approximate = approximate

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"approximate={self.approximate!r}"


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.sigmoid(x)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.softmax(x, self.dim)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of softmax along `dim`."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.log_softmax(x, self.dim)
