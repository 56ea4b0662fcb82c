"""Pooling and flattening."""

from __future__ import annotations

from typing import ClassVar

from psframework.autograd import Tensor
from psframework.autograd.ops.adaptive import OutputSize
from psframework.autograd.ops.shape import flatten
from psframework.autograd.ops.windows import Sizes, sizes
from psframework.backend import Array
from psframework.nn import functional as F
from psframework.nn.module import Module


class _MaxPool(Module):
    """The largest value of each window of (batch, channels, ...) or (channels, ...); the border never wins.

    Args:
        kernel_size: one number, or one for each axis; so are the next three.
        stride: steps from one window to the next; the kernel's size if None.
        padding: border on each side, at most half of the kernel.
        dilation: steps from one element of a window to the next.
        ceil_mode: count windows that begin inside and end outside.
    """

    _axes: ClassVar[int]

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        *,
        ceil_mode: bool = False,
    ):
        name = type(self).__name__
        self.kernel_size = sizes(name, "kernel_size", kernel_size, self._axes, 1)
        self.stride = self.kernel_size if stride is None else sizes(name, "stride", stride, self._axes, 1)
        self.padding = sizes(name, "padding", padding, self._axes, 0)
        self.dilation = sizes(name, "dilation", dilation, self._axes, 1)
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        op = (F.max_pool1d, F.max_pool2d)[self._axes - 1]
        return op(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        text = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return f"{text}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"


class MaxPool1d(_MaxPool):
    """The largest value of each window of (batch, channels, length); see `_MaxPool`."""

    _axes = 1


class MaxPool2d(_MaxPool):
    """The largest value of each window of (batch, channels, rows, columns); see `_MaxPool`."""

    _axes = 2


class AvgPool1d(Module):
    """The mean of each window of (batch, channels, length) or (channels, length).

    Args:
        kernel_size: elements of a window.
        stride: steps from one window to the next; the kernel's size if None.
        padding: zeros on each side, at most half of the kernel.
        ceil_mode: count windows that begin inside and end outside.
        count_include_pad: whether the zeros count in the mean.
    """

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ):
        self.kernel_size = sizes("AvgPool1d", "kernel_size", kernel_size, 1, 1)
        self.stride = self.kernel_size if stride is None else sizes("AvgPool1d", "stride", stride, 1, 1)
        self.padding = sizes("AvgPool1d", "padding", padding, 1, 0)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        steps = self.kernel_size, self.stride, self.padding
        return F.avg_pool1d(x, *steps, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of (batch, channels, rows, columns) or (channels, rows, columns).

    Args:
        kernel_size: one number, or rows and columns; so are the next two.
        stride: steps from one window to the next; the kernel's size if None.
        padding: zeros on each side, at most half of the kernel.
        ceil_mode: count windows that begin inside and end outside.
        count_include_pad: whether the zeros count in the mean.
        divisor_override: what to divide each sum by, instead of the number of elements.
    """

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        self.kernel_size = sizes("AvgPool2d", "kernel_size", kernel_size, 2, 1)
        self.stride = self.kernel_size if stride is None else sizes("AvgPool2d", "stride", stride, 2, 1)
        self.padding = sizes("AvgPool2d", "padding", padding, 2, 0)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        steps = self.kernel_size, self.stride, self.padding
        return F.avg_pool2d(x, *steps, self.ceil_mode, self.count_include_pad, self.divisor_override)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _Adaptive(Module):
    """Pooling to a given size: one number, or one for each axis; None keeps an axis as it is."""

    def __init__(self, output_size: OutputSize):
        self.output_size = output_size

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """The means of `output_size` windows over the last axis."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The means of `output_size` windows over rows and columns; 1 is global average pooling."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveMaxPool1d(_Adaptive):
    """The largest values of `output_size` windows over the last axis."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.adaptive_max_pool1d(x, self.output_size)


class AdaptiveMaxPool2d(_Adaptive):
    """The largest values of `output_size` windows over rows and columns."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.adaptive_max_pool2d(x, self.output_size)


class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim` into one; by default all but the batch's."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
