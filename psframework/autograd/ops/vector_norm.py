"""Lengths of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.reduce import normal_axes
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("norm")
def norm(x: Tensor | Array, ord: float | None = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The length of the vectors along `axis`, as `np.linalg.norm`; its derivative at 0 is 0.

    Args:
        x: any shape, floating. 16-bit floats are computed in float32.
        ord: p of `sum(|x|**p) ** (1/p)`, above 0; inf and -inf for the largest and the smallest. None for 2,
            over any number of axes.
        axis: one axis, or several for `ord=None`; None for all.
        keepdims: leave axes of length 1.

    Raises:
        ArgumentError: `ord` over several axes, which is NumPy's norm of matrices.
    """
    x = as_tensor(x, "norm")
    data, dtype, shape = x._data, x._data.dtype, x._data.shape
    axes = normal_axes("norm", len(shape), axis)
    if not backend.is_floating(dtype):
        raise ArgumentError(f"norm: dtype {dtype} is not floating: convert with .astype(np.float32)")
    if ord is not None and len(axes) > 1:
        raise ArgumentError(
            f"norm: ord={ord} over axes {axes} is a norm of matrices: reshape to vectors first"
        )
    p = 2.0 if ord is None else float(ord) if isinstance(ord, int | float) else np.nan
    if not (p > 0 or p == -np.inf):
        raise ArgumentError(f"norm: ord={ord!r} is neither above 0 nor -inf")
    wide = backend.widen(data)
    length = _length(wide, p, axes)
    kept_shape = [n for i, n in enumerate(shape) if keepdims or i not in axes]
    out = length.reshape([1 if i in axes else n for i, n in enumerate(shape)] if keepdims else kept_shape)
    out = out.astype(dtype, copy=False)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        g = backend.widen(gradient).reshape(length.shape) * _slope(wide, length, p, axes)
        return (g.astype(dtype, copy=False),)

    return record("norm", out, rule, (x,), (x,), saves_output=True)


def _length(x: Array, p: float, axes: tuple[int, ...]) -> Array:
    """The norms, with axes of length 1 kept."""
    xp = backend.xp(x)
    if p == 2:
        return backend.as_array(xp.sqrt(xp.sum(x * x, axis=axes, keepdims=True)))
    size = xp.abs(x)
    if abs(p) == np.inf:
        return backend.as_array((xp.max if p > 0 else xp.min)(size, axis=axes, keepdims=True))
    if p == 1:
        return backend.as_array(xp.sum(size, axis=axes, keepdims=True))
    return backend.as_array(xp.sum(size**p, axis=axes, keepdims=True) ** (1 / p))


def _slope(x: Array, length: Array, p: float, axes: tuple[int, ...]) -> Any:
    xp = backend.xp(x)
    if p == 1:
        return xp.sign(x)
    if abs(p) == np.inf:  # equal ones share it
        hits = xp.abs(x) == length
        return xp.sign(x) * hits / xp.sum(hits, axis=axes, keepdims=True).astype(x.dtype)
    divisor = xp.where(length == 0, 1, length).astype(x.dtype)
    if p == 2:
        return x / divisor
    size = xp.where(x == 0, 1, xp.abs(x)).astype(x.dtype)  # of any value: the sign is 0
    return xp.sign(x) * (size / divisor) ** (p - 1)
