"""Upsampling."""

from __future__ import annotations

from collections.abc import Sequence

from psframework.autograd import Tensor
from psframework.autograd.ops.windows import Sizes
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn.module import Module


class Upsample(Module):
    """Resizes the axes behind the channels; each element becomes the nearest one of the input.

    Args:
        size: lengths of the result, one for all axes or one for each; or
        scale_factor: by what to multiply the lengths, likewise.
        mode: "nearest", the only one.
    """

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
    ):
        if (size is None) == (scale_factor is None):
            raise ArgumentError("Upsample takes either size or scale_factor")
        self.size, self.scale_factor, self.mode = size, scale_factor, mode

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return F.interpolate(x, self.size, self.scale_factor, self.mode)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        by = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{by}, mode={self.mode!r}"
