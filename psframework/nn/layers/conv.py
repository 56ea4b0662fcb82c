"""Convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from psframework.autograd import Tensor
from psframework.autograd.ops.windows import Sizes as Pair
from psframework.autograd.ops.windows import sizes as pair
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.layers.linear import reset_weight_and_bias
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class Conv2d(Module):
    """2-D convolution (cross-correlation) of (batch, channels, rows, columns).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one number, or rows and columns; so are the next three.
        stride: steps from one window to the next.
        padding: zeros on each side; "valid" for none, "same" to keep the size (stride 1, odd kernels).
        dilation: steps from one element of a window to the next.
        groups: channels are cut into this many groups that do not see each other.
        bias: whether to add a bias.
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: (out_channels, in_channels / groups, *kernel_size), uniform within 1/sqrt(fan_in) as torch's.
        bias: (out_channels,), likewise; or None.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: Any = None,
    ):
        if groups < 1 or in_channels < 1 or in_channels % groups or out_channels < 1 or out_channels % groups:
            raise ArgumentError(
                f"Conv2d: {in_channels} and {out_channels} channels must be multiples of groups={groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = pair("Conv2d", "kernel_size", kernel_size, 2, 1)
        self.stride = pair("Conv2d", "stride", stride, 2, 1)
        self.dilation = pair("Conv2d", "dilation", dilation, 2, 1)
        self.padding = self._as_pair(padding)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(np.empty(shape, dtype or np.float32))
        self.register_parameter(
            "bias", Parameter(np.empty(out_channels, dtype or np.float32)) if bias else None
        )
        self.reset_parameters()

    def _as_pair(self, padding: Pair | str) -> tuple[int, int]:
        if not isinstance(padding, str):
            return pair("Conv2d", "padding", padding, 2, 0)
        if padding == "valid":
            return 0, 0
        spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
        if padding != "same" or self.stride != (1, 1) or any(span % 2 for span in spans):
            raise ArgumentError(
                f'Conv2d: padding {padding!r} is no number, "valid", or "same" with stride 1 and odd kernels'
            )
        return spans[0] // 2, spans[1] // 2

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        text += f", padding={self.padding}" if any(self.padding) else ""
        text += f", dilation={self.dilation}" if self.dilation != (1, 1) else ""
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text + (", bias=False" if self.bias is None else "")
