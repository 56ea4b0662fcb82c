"""Resizing of images: each element of the result is the nearest element of the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.elementwise import clone
from psframework.autograd.ops.move import repeat
from psframework.autograd.ops.windows import Sizes, sizes
from psframework.autograd.record import as_tensor
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def interpolate(
    input: Tensor | Array,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
) -> Tensor:
    """Resize all axes behind the channels, as torch's of mode "nearest".

    Args:
        input: (batch, channels, ...), floating.
        size: lengths of the result, one for all axes or one for each; or
        scale_factor: by what to multiply the lengths, likewise.
        mode: "nearest", the only one.

    Raises:
        ArgumentError: both or none of size and scale_factor, another mode, or no axes to resize.
    """
    x = as_tensor(input, "interpolate")
    axes = x.ndim - 2
    if mode != "nearest":
        raise ArgumentError(f'interpolate: mode={mode!r} is not offered: only "nearest" is')
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate takes either size or scale_factor")
    lengths = x.shape[2:]
    if not lengths or min(lengths) < 1 or not backend.is_floating(x.dtype):
        raise ArgumentError(
            "interpolate: input must be floating, (batch, channels, ...) of images with elements, "
            f"got {x.dtype} {x.shape}"
        )
    if size is not None:
        wanted = sizes("interpolate", "size", size, axes, 1)
        steps = [n / m for n, m in zip(lengths, wanted)]
    else:
        factors = _factors(scale_factor, axes)
        wanted = tuple([math.floor(n * factor) for n, factor in zip(lengths, factors)])
        steps = [1 / factor for factor in factors]
    out = x
    for axis, (n, m, step) in enumerate(zip(lengths, wanted, steps), 2):
        # How often each element comes, in their order.
        counts = np.bincount(np.minimum((np.arange(m) * step).astype(np.int64), n - 1), minlength=n)
        if (counts != 1).any():
            out = repeat(out, int(counts[0]) if (counts == counts[0]).all() else counts, axis)
    return clone(x) if out is x else out


def _factors(scale_factor: Any, axes: int) -> list[float]:
    each = list(scale_factor) if isinstance(scale_factor, Sequence) else [scale_factor] * axes
    if len(each) != axes or not all(isinstance(f, int | float) and f > 0 for f in each):
        raise ArgumentError(f"interpolate: scale_factor={scale_factor!r} must be above 0, or {axes} such")
    return each
