"""Normalization over groups of channels (Wu and He, arXiv:1803.08494; Ulyanov et al., arXiv:1607.08022)."""

from __future__ import annotations

from typing import Any, ClassVar

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn import init
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class GroupNorm(Module):
    """Normalizes each group of channels of each image of (batch, channels, ...).

    Args:
        num_groups: the channels are cut into this many groups.
        num_channels: number of channels.
        eps: added to the variance.
        affine: whether to scale and shift each channel by `weight` and `bias`.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: (num_channels,), initially ones; or None.
        bias: (num_channels,), initially zeros; or None.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: Any = None
    ):
        if num_groups < 1 or num_channels < 1 or num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: {num_channels} channels must be a multiple of {num_groups} groups"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        _register(self, num_channels, affine, dtype)

    def reset_parameters(self) -> None:
        """Sets the initial values."""
        _reset(self.weight, self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _InstanceNorm(Module):
    """Normalizes each channel of each image, in training and in evaluation alike.

    Args:
        num_features: number of channels.
        eps: added to the variance.
        affine: whether to scale and shift each channel by `weight` and `bias`.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: (num_features,), initially ones; or None.
        bias: (num_features,), initially zeros; or None.
    """

    _ndim: ClassVar[int]
    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, num_features: int, eps: float = 1e-5, *, affine: bool = False, dtype: Any = None):
        if num_features < 1:
            raise ArgumentError(f"{type(self).__name__} needs at least one channel, not {num_features}")
        self.num_features, self.eps, self.affine = num_features, eps, affine
        _register(self, num_features, affine, dtype)

    def reset_parameters(self) -> None:
        """Sets the initial values."""
        _reset(self.weight, self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        if x.ndim != self._ndim or x.shape[1] != self.num_features:
            raise ArgumentError(
                f"{type(self).__name__} takes {self._ndim} dimensions with {self.num_features} channels, "
                f"not shape {x.shape}"
            )
        return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}"


class InstanceNorm1d(_InstanceNorm):
    """Instance normalization of (batch, channels, length); see `_InstanceNorm`."""

    _ndim = 3


class InstanceNorm2d(_InstanceNorm):
    """Instance normalization of (batch, channels, rows, columns); see `_InstanceNorm`."""

    _ndim = 4


def _register(module: GroupNorm | _InstanceNorm, channels: int, affine: bool, dtype: Any) -> None:
    for name in ("weight", "bias"):
        values = Parameter(empty(channels, dtype)) if affine else None
        module.register_parameter(name, values)
    module.reset_parameters()


def _reset(weight: Parameter | None, bias: Parameter | None) -> None:
    if weight is not None and bias is not None:
        init.ones_(weight)
        init.zeros_(bias)
