"""Fully connected layer."""

from __future__ import annotations

import math
from typing import Any

from psframework.autograd import Tensor
from psframework.autograd.ops.matmul import linear
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import init
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class Linear(Module):
    """y = x @ weight.T + bias, from (..., in_features) to (..., out_features).

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: whether to add a bias.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: (out_features, in_features), uniform within 1/sqrt(in_features), as torch's.
        bias: (out_features,), likewise; or None.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None):
        if in_features < 1 or out_features < 1:
            raise ArgumentError(f"Linear needs positive sizes, not {in_features} and {out_features}")
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty((out_features, in_features), dtype))
        self.register_parameter("bias", Parameter(empty(out_features, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


def reset_weight_and_bias(weight: Parameter, bias: Parameter | None) -> None:
    """torch's initial values of linear and convolutional layers: both uniform within 1/sqrt(fan_in)."""
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(init.fans(weight.shape)[0])
        init.uniform_(bias, -bound, bound)
