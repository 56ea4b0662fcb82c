"""Pooling and flattening."""

from __future__ import annotations

from psframework.autograd import Tensor
from psframework.autograd.ops.shape import flatten
from psframework.autograd.ops.windows import Sizes as Pair
from psframework.autograd.ops.windows import sizes as pair
from psframework.backend import Array
from psframework.nn import functional as F
from psframework.nn.module import Module


class _Pool2d(Module):
    """Windows over the last two axes of (batch, channels, rows, columns).

    Args:
        kernel_size: one number, or rows and columns; so are the next two.
        stride: steps from one window to the next; the kernel's size if None.
        padding: border on each side, at most half of the kernel.
    """

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0):
        name = type(self).__name__
        self.kernel_size = pair(name, "kernel_size", kernel_size, 2, 1)
        self.stride = self.kernel_size if stride is None else pair(name, "stride", stride, 2, 1)
        self.padding = pair(name, "padding", padding, 2, 0)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """The largest value of each window; the border never wins."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool2d):
    """The mean of each window; the border counts as zeros."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding)


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
