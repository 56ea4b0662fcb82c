"""Convolution."""

from __future__ import annotations

from typing import Any, ClassVar

from psframework.autograd import Tensor
from psframework.autograd.ops.pad import pad
from psframework.autograd.ops.windows import Sizes, sizes
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.layers.linear import reset_weight_and_bias
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Conv(Module):
    """Convolution (cross-correlation) of (batch, channels, ...) or (channels, ...).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one number, or one for each axis; so are the next three.
        stride: steps from one window to the next.
        padding: elements added on each side; "valid" for none, "same" to keep the size (stride 1).
        dilation: steps from one element of a window to the next.
        groups: channels are cut into this many groups that do not see each other.
        bias: whether to add a bias.
        padding_mode: what is added: "zeros", "reflect", "replicate" (the last element) or "circular".
        dtype: of the parameters; float32 if None.

    Attributes:
        weight: (out_channels, in_channels / groups, *kernel_size), uniform within 1/sqrt(fan_in) as torch's.
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
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: Any = None,
    ):
        name = type(self).__name__
        check_channels(name, in_channels, out_channels, groups)
        if padding_mode not in PADDING_MODES:
            raise ArgumentError(
                f"{name}: padding_mode={padding_mode!r} is none of {', '.join(PADDING_MODES)}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes(name, "kernel_size", kernel_size, self._axes, 1)
        self.stride = sizes(name, "stride", stride, self._axes, 1)
        self.dilation = sizes(name, "dilation", dilation, self._axes, 1)
        self.padding_mode = padding_mode
        self.padding = self._checked(name, padding)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, dtype)) if bias else None)
        self.reset_parameters()

    def _checked(self, name: str, padding: Sizes | str) -> tuple[int, ...] | str:
        if not isinstance(padding, str):
            return sizes(name, "padding", padding, self._axes, 0)
        if padding not in ("same", "valid") or (padding == "same" and max(self.stride) > 1):
            raise ArgumentError(f'{name}: padding={padding!r} is no number, "valid", or "same" with stride 1')
        return padding

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        op = (F.conv1d, F.conv2d)[self._axes - 1]
        padding: Sizes | str = self.padding
        if self.padding_mode != "zeros":
            x, padding = pad(x, self._border(x.ndim), self.padding_mode), 0
        return op(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _border(self, ndim: int) -> list[tuple[int, int]]:
        if isinstance(self.padding, str):
            same = self.padding == "same"
            totals = [d * (k - 1) if same else 0 for d, k in zip(self.dilation, self.kernel_size)]
            border = [(total // 2, total - total // 2) for total in totals]
        else:
            border = [(n, n) for n in self.padding]
        return [(0, 0)] * (ndim - self._axes) + border

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        text += f", padding={self.padding}" if self.padding != (0,) * self._axes else ""
        text += f", dilation={self.dilation}" if max(self.dilation) > 1 else ""
        text += f", groups={self.groups}" if self.groups != 1 else ""
        text += f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else ""
        return text + (", bias=False" if self.bias is None else "")


def check_channels(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    """Raises ArgumentError unless both are positive multiples of `groups`."""
    if groups < 1 or in_channels < 1 or in_channels % groups or out_channels < 1 or out_channels % groups:
        raise ArgumentError(
            f"{name}: {in_channels} and {out_channels} channels must be multiples of groups={groups}"
        )


class Conv1d(_Conv):
    """Convolution of (batch, channels, length) or (channels, length); see `_Conv`."""

    _axes = 1


class Conv2d(_Conv):
    """Convolution of (batch, channels, rows, columns) or (channels, rows, columns); see `_Conv`."""

    _axes = 2
