"""Reductions over axes: sums, means, extremes and where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError


def normal_axes(name: str, ndim: int, axis: Axis) -> tuple[int, ...]:
    """`axis` as ascending numbers from 0; all axes for None.

    Raises:
        ArgumentError: an axis that the array does not have, or one named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = []
    for item in given:
        if not isinstance(item, int | np.integer) or not -ndim <= item < ndim:
            raise ArgumentError(f"{name}: axis {item!r} of an array of {ndim} axes")
        axes.append(int(item) % ndim)
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"{name}: an axis is named twice in {axis}")
    return tuple(sorted(axes))


def normal_axis(name: str, ndim: int, axis: int) -> int:
    """One axis as a number from 0.

    Raises:
        ArgumentError: an axis that the array does not have, none, or several.
    """
    if not isinstance(axis, int | np.integer):
        raise ArgumentError(f"{name}: one axis is needed, not axis={axis!r}")
    return normal_axes(name, ndim, axis)[0]


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod([shape[i] for i in axes])


def sum(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Sum over `axis` (all by default). 16-bit floats are summed in float32."""
    x = as_tensor(x, "sum")
    data, xp = x._data, backend.xp(x._data)
    axes = normal_axes("sum", data.ndim, axis)
    out = xp.add.reduce(data, axes, keepdims=keepdims, dtype=_sum_dtype(data.dtype))
    if out.dtype != data.dtype and backend.is_narrow(data.dtype):
        out = out.astype(data.dtype)
    if not recording(x):
        return constant(out)
    shape, kept = data.shape, _kept_shape(data.shape, axes)
    return record("sum", out, lambda g: (xp.broadcast_to(g.reshape(kept), shape),), (x,))


# add.reduce keeps small integers, where sum() widens them; widen as sum() does.
_WIDE = {"b": np.dtype(np.int64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
_FLOAT32 = np.dtype(np.float32)


def _sum_dtype(dtype: DType) -> DType:
    """What elements of `dtype` are summed in."""
    return _FLOAT32 if backend.is_narrow(dtype) else _WIDE.get(dtype.kind, dtype)


def mean(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Mean over `axis` (all by default). 16-bit floats are summed in float32; integers give float64."""
    x = as_tensor(x, "mean")
    data, xp = x._data, backend.xp(x._data)
    axes = normal_axes("mean", data.ndim, axis)
    count = _count(data.shape, axes)
    # As mean() does it, which would take three times as long for a small array.
    out = xp.add.reduce(data, axes, keepdims=keepdims, dtype=_sum_dtype(data.dtype)) / (count or np.nan)
    if backend.is_narrow(data.dtype):
        out = out.astype(data.dtype)
    if not recording(x):
        return constant(out)
    shape, kept = data.shape, _kept_shape(data.shape, axes)
    return record("mean", out, lambda g: (xp.broadcast_to(g.reshape(kept) / count, shape),), (x,))


def var(x: Tensor | Array, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Variance over `axis` (all by default), as NumPy's: the divisor is `count - ddof`."""
    return _spread("var", x, axis, keepdims, ddof)


def std(x: Tensor | Array, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Standard deviation: the square root of `var`. Where it is 0 its derivative is 0."""
    return _spread("std", x, axis, keepdims, ddof)


def _spread(name: str, x: Tensor | Array, axis: Axis, keepdims: bool, ddof: int) -> Tensor:
    x = as_tensor(x, name)
    xp, dtype, shape = backend.xp(x._data), x._data.dtype, x._data.shape
    axes = normal_axes(name, len(shape), axis)
    divisor = _count(shape, axes) - ddof
    if divisor <= 0:
        raise ArgumentError(
            f"{name}: {divisor + ddof} values for ddof={ddof}: at least {ddof + 1} are needed"
        )
    wide = backend.widen(x._data)
    centred = wide - xp.add.reduce(wide, axes, keepdims=True, dtype=_sum_dtype(wide.dtype)) / (divisor + ddof)
    found = xp.add.reduce(centred * centred, axes, keepdims=keepdims) / divisor
    if name == "std":
        found = xp.sqrt(found)
    out = backend.as_array(found.astype(dtype) if backend.is_narrow(dtype) else found)
    if not recording(x):
        return constant(out)
    kept = _kept_shape(shape, axes)

    def rule(gradient: Array) -> Sequence[Array]:
        g = backend.widen(gradient)
        g = g * (2 / divisor) if name == "var" else g / (divisor * xp.where(found == 0, 1, found))
        g = centred * g.reshape(kept)
        return (g.astype(dtype) if g.dtype != dtype else g,)

    return record(name, out, rule, (x,), saves_output=name == "std")


def _filled_axes(name: str, shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """As `normal_axes`, where there are elements."""
    axes = normal_axes(name, len(shape), axis)
    if _count(shape, axes) == 0:
        raise ArgumentError(f"{name}: no elements along axis {axis} of shape {shape}")
    return axes


def _extreme(name: str, x: Tensor | Array, axis: Axis, keepdims: bool) -> Tensor:
    x = as_tensor(x, name)
    data = x._data
    axes = _filled_axes(name, data.shape, axis)
    top = backend.as_array(getattr(data, name)(axis=axes, keepdims=True))
    kept = top.shape
    out = top if keepdims else top.reshape([n for i, n in enumerate(data.shape) if i not in axes])
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        g = backend.widen(gradient).reshape(kept)
        hits = (data == top).astype(g.dtype)
        hits *= g / hits.sum(axis=axes, keepdims=True)
        return (hits.astype(data.dtype, copy=False),)

    return record(name, out, rule, (x,), (x,), saves_output=True)


def max(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Largest value over `axis` (all by default); equal ones share the gradient."""
    return _extreme("max", x, axis, keepdims)


def min(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Smallest value over `axis` (all by default); equal ones share the gradient."""
    return _extreme("min", x, axis, keepdims)


def ptp(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The distance from the smallest to the largest value over `axis` (all by default)."""
    x = as_tensor(x, "ptp")
    _filled_axes("ptp", x.shape, axis)
    return max(x, axis, keepdims) - min(x, axis, keepdims)


def average(
    x: Tensor | Array, axis: Axis = None, weights: Tensor | Array | None = None, keepdims: bool = False
) -> Tensor:
    """Mean over `axis` (all by default), each element counted by its weight.

    Args:
        x: any shape.
        axis: one axis or several.
        weights: of the shape of `x`, or one for each element of one `axis`; None for equal ones.
        keepdims: leave axes of length 1.
    """
    x = as_tensor(x, "average")
    normal_axes("average", x.ndim, axis)
    if weights is None:
        return mean(x, axis, keepdims)
    w = as_tensor(weights, "average")
    if w.shape != x.shape:
        place = normal_axis("average", x.ndim, axis) if isinstance(axis, int) else None
        if place is None or w.shape != (x.shape[place],):
            raise ArgumentError(f"average: weights of shape {w.shape} for shape {x.shape} and axis {axis}")
        w = w.reshape([-1 if i == place else 1 for i in range(x.ndim)])
    total = sum(w, axis if w.shape == x.shape else None, keepdims and w.shape == x.shape)
    return sum(x * w, axis, keepdims) / total


def _place(name: str, x: Tensor | Array, axis: int | None, keepdims: bool) -> Tensor:
    data = as_tensor(x, name)._data
    if axis is not None:
        normal_axis(name, data.ndim, axis)
    axes = _filled_axes(name, data.shape, axis)
    found = backend.as_array(getattr(backend.xp(data), name)(data, axis=axis))
    return constant(found.reshape(_kept_shape(data.shape, axes)) if keepdims else found)


def argmax(x: Tensor | Array, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first largest value along `axis`, or in the flattened array: a constant, int64."""
    return _place("argmax", x, axis, keepdims)


def argmin(x: Tensor | Array, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first smallest value along `axis`, or in the flattened array: a constant, int64."""
    return _place("argmin", x, axis, keepdims)
