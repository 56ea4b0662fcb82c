"""Transposed convolution."""

from __future__ import annotations

from typing import Any, ClassVar

from psframework.autograd import Tensor
from psframework.autograd.ops.windows import Sizes, sizes
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.layers.conv import check_channels
from psframework.nn.layers.linear import reset_weight_and_bias
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class _ConvTranspose(Module):
    """Transposed convolution of (batch, channels, ...) or (channels, ...).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one number, or one for each axis; so are the next three, and dilation.
        stride: steps in the output from one window to the next.
        padding: elements of the output left out on each side.
        output_padding: elements added behind the output; less than stride or dilation.
        groups: channels are cut into this many groups that do not see each other.
        bias: whether to add a bias.
        dilation: steps from one element of a window to the next.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: (in_channels, out_channels / groups, *kernel_size), uniform within 1/sqrt(n) as torch's, where
            n is the number of weights for one input channel.
        bias: (out_channels,), likewise; or None.
    """

    _axes: ClassVar[int]
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        *,
        dtype: Any = None,
    ):
        name = type(self).__name__
        check_channels(name, in_channels, out_channels, groups)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes(name, "kernel_size", kernel_size, self._axes, 1)
        self.stride = sizes(name, "stride", stride, self._axes, 1)
        self.padding = sizes(name, "padding", padding, self._axes, 0)
        self.output_padding = sizes(name, "output_padding", output_padding, self._axes, 0)
        self.dilation = sizes(name, "dilation", dilation, self._axes, 1)
        if any(m >= max(s, d) for m, s, d in zip(self.output_padding, self.stride, self.dilation)):
            raise ArgumentError(
                f"{name}: output_padding={self.output_padding} must be less than stride={self.stride} "
                f"or dilation={self.dilation}"
            )
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        op = (F.conv_transpose1d, F.conv_transpose2d)[self._axes - 1]
        weight, bias, more = self.weight, self.bias, self.output_padding
        return op(x, weight, bias, self.stride, self.padding, more, self.groups, self.dilation)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        text += f", padding={self.padding}" if any(self.padding) else ""
        text += f", dilation={self.dilation}" if max(self.dilation) > 1 else ""
        text += f", output_padding={self.output_padding}" if any(self.output_padding) else ""
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text + (", bias=False" if self.bias is None else "")


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of (batch, channels, length) or (channels, length); see `_ConvTranspose`."""

    _axes = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of (batch, channels, rows, columns), or of one image; see `_ConvTranspose`."""

    _axes = 2
