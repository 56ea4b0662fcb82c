"""Normalization over the last axes (Ba et al., arXiv:1607.06450; Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn import init
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class LayerNorm(Module):
    """Subtracts the mean and divides by the standard deviation over the last axes.

    Args:
        normalized_shape: lengths of these axes; one number for the last axis.
        eps: added to the variance.
        elementwise_affine: whether to scale and shift by `weight` and `bias`.
        bias: whether there is a bias, if elementwise_affine.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: normalized_shape, initially ones; or None.
        bias: normalized_shape, initially zeros; or None.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ):
        self.normalized_shape = _shape("LayerNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            values = Parameter(empty(self.normalized_shape, dtype)) if wanted else None
            self.register_parameter(name, values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the initial values."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """Divides by the root of the mean square over the last axes.

    Args:
        normalized_shape: lengths of these axes; one number for the last axis.
        eps: added to the mean square; None for the spacing of numbers at 1 in the dtype computed in.
        elementwise_affine: whether to scale by `weight`.
        dtype: of the parameter; float32 if None.

    Attributes:
        weight: normalized_shape, initially ones; or None.
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ):
        self.normalized_shape = _shape("RMSNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        values = Parameter(empty(self.normalized_shape, dtype))
        self.register_parameter("weight", values if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the initial values."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


def _shape(name: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if not shape or min(shape) < 1:
        raise ArgumentError(
            f"{name}: normalized_shape={normalized_shape!r} must be one positive size or more"
        )
    return shape
