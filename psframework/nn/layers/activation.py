"""Activations as modules."""

from __future__ import annotations

from typing import Any

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.init import constant_
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


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


class SiLU(Module):
    """x * sigmoid(x), also called swish."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.silu(x)


class Mish(Module):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.mish(x)


class LogSigmoid(Module):
    """The logarithm of sigmoid."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.logsigmoid(x)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.softsign(x)


class SELU(Module):
    """A scaled ELU that keeps mean 0 and variance 1 (Klambauer et al., 2017)."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.selu(x)


class ReLU6(Module):
    """x limited to [0, 6]."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.relu6(x)


class Hardsigmoid(Module):
    """x / 6 + 1/2, limited to [0, 1]."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.hardsigmoid(x)


class Hardswish(Module):
    """x * hardsigmoid(x)."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.hardswish(x)


class LeakyReLU(Module):
    """x where it is positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01):
        self.negative_slope = negative_slope

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where it is positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0):
        self.alpha = alpha

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"alpha={self.alpha}"


class CELU(Module):
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0):
        self.alpha = alpha

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.celu(x, self.alpha)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"alpha={self.alpha}"


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardtanh(Module):
    """x limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0):
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"min_val={self.min_val}, max_val={self.max_val}"


class GLU(Softmax):
    """The first half of x along `dim` times the sigmoid of the second."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.glu(x, self.dim)


class PReLU(Module):
    """x where it is positive, else weight * x.

    Args:
        num_parameters: 1, or the number of channels (axis 1).
        init: initial value of the weight.
        dtype: of the weight; float32 if None.

    Attributes:
        weight: (num_parameters,).
    """

    weight: Parameter

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = None):
        if num_parameters < 1:
            raise ArgumentError(f"PReLU needs 1 parameter or more, not {num_parameters}")
        self.num_parameters = num_parameters
        self.weight = Parameter(empty(num_parameters, dtype))
        constant_(self.weight, init)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"num_parameters={self.num_parameters}"
