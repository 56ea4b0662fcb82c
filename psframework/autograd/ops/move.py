"""Moving elements about: roll, flip, repeat, triangles, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from psframework import backend
from psframework.autograd.ops.index import index
from psframework.autograd.ops.reduce import normal_axes
from psframework.autograd.ops.shape import along, moveaxis, viewed
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("roll")
def roll(x: Tensor | Array, shift: int | tuple[int, ...], axis: Axis = None) -> Tensor:
    """`x` moved by `shift` places along `axis`; what leaves at one end comes in at the other.

    Args:
        x: any shape.
        shift: places, one number for all axes or one each.
        axis: along which; None rolls the elements in their flat order.
    """
    x = as_tensor(x, "roll")
    xp = backend.xp(x._data)
    back = -shift if isinstance(shift, int | np.integer) else tuple(-s for s in shift)
    out = xp.roll(x._data, shift, axis)
    return record("roll", out, lambda g: (xp.roll(g, back, axis),), (x,)) if recording(x) else constant(out)


def flip(x: Tensor | Array, axis: Axis = None) -> Tensor:
    """`x` in reverse order along `axis` (all by default), as a view."""
    return _flip("flip", x, axis)


def flipud(x: Tensor | Array) -> Tensor:
    """The first axis in reverse order."""
    return _flip("flipud", x, 0)


def fliplr(x: Tensor | Array) -> Tensor:
    """The second axis in reverse order."""
    return _flip("fliplr", x, 1)


def _flip(name: str, x: Tensor | Array, axis: Axis) -> Tensor:
    x = as_tensor(x, name)
    axes = normal_axes(name, x.ndim, axis)
    key = tuple(slice(None, None, -1 if i in axes else 1) for i in range(x.ndim))
    return viewed(name, x, x._data[key], lambda g: g[key])


@guarded("rot90")
def rot90(x: Tensor | Array, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tensor:
    """`x` turned by `k` times 90 degrees, from the first of `axes` towards the second."""
    x = as_tensor(x, "rot90")
    xp = backend.xp(x._data)
    return viewed("rot90", x, xp.rot90(x._data, k, axes), lambda g: xp.rot90(g, -k, axes))


def repeat(
    x: Tensor | Array, repeats: int | Sequence[int] | Array | Tensor, axis: int | None = None
) -> Tensor:
    """Each element of `axis` several times in a row.

    Args:
        x: any shape.
        repeats: how often; one number, or one for each element of the axis.
        axis: None for the elements in their flat order.
    """
    x, place = along("repeat", x, axis)
    counts = np.atleast_1d(backend.asnumpy(repeats._data if isinstance(repeats, Tensor) else repeats))
    n = x.shape[place]
    if counts.dtype.kind not in "iu" or counts.shape not in ((1,), (n,)) or (counts < 0).any():
        raise ArgumentError(f"repeat: {n} elements along axis {place} take one count or {n}, got {counts}")
    if counts.size > 1:
        positions = backend.array_like(np.repeat(np.arange(n), counts), x._data)
        return index(x, (*(slice(None),) * place, positions), "repeat")
    times = int(counts[0])
    xp, shape = backend.xp(x._data), x.shape
    out = xp.repeat(x._data, times, axis=place)
    if not recording(x):
        return constant(out)
    apart = (*shape[: place + 1], times, *shape[place + 1 :])
    return record("repeat", out, lambda g: (_sum_axes(g.reshape(apart), (place + 1,)),), (x,))


@guarded("tile")
def tile(x: Tensor | Array, reps: int | Sequence[int]) -> Tensor:
    """`x` set side by side `reps` times along each axis; more numbers than axes make new axes in front."""
    x = as_tensor(x, "tile")
    times = (reps,) if isinstance(reps, int | np.integer) else tuple(reps)
    if any(n < 0 for n in times):
        raise ArgumentError(f"tile: a negative count in {times}")
    old = x.shape
    ndim = max(len(times), x.ndim)
    times = (1,) * (ndim - len(times)) + times
    shape = (1,) * (ndim - x.ndim) + old
    out = backend.xp(x._data).tile(x._data, times)
    if not recording(x):
        return constant(out)
    apart = tuple(n for pair in zip(times, shape) for n in pair)
    axes = tuple(range(0, 2 * ndim, 2))
    return record("tile", out, lambda g: (_sum_axes(g.reshape(apart), axes).reshape(old),), (x,))


def _sum_axes(array: Array, axes: tuple[int, ...]) -> Array:
    dtype = np.float32 if backend.is_narrow(array.dtype) else array.dtype
    return cast(Array, array.sum(axis=axes, dtype=dtype)).astype(array.dtype, copy=False)


@guarded("tril")
def tril(x: Tensor | Array, k: int = 0) -> Tensor:
    """`x` with zeros above the `k`-th diagonal of its last two axes."""
    return _triangle("tril", x, k)


@guarded("triu")
def triu(x: Tensor | Array, k: int = 0) -> Tensor:
    """`x` with zeros below the `k`-th diagonal of its last two axes."""
    return _triangle("triu", x, k)


def _triangle(name: str, x: Tensor | Array, k: int) -> Tensor:
    x = as_tensor(x, name)
    if x.ndim < 2:
        raise ArgumentError(f"{name}: shape {x.shape} has no matrices: two axes or more are needed")
    cut = getattr(backend.xp(x._data), name)
    out = cut(x._data, k)
    return record(name, out, lambda g: (cut(g, k),), (x,)) if recording(x) else constant(out)


@guarded("diagonal")
def diagonal(x: Tensor | Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The `offset`-th diagonal of the two axes, as a last axis; positive offsets lie above the main one."""
    return _diagonal("diagonal", x, offset, axis1, axis2)


def _diagonal(name: str, x: Tensor | Array, offset: int, axis1: int, axis2: int) -> Tensor:
    x = as_tensor(x, name)
    if x.ndim < 2:
        raise ArgumentError(f"{name}: two axes of an array of two or more, got shape {x.shape}")
    normal_axes(name, x.ndim, (axis1, axis2))
    rows, columns = _places(x.shape[axis1], x.shape[axis2], offset, x._data)
    return index(moveaxis(x, (axis1, axis2), (-2, -1)), (..., rows, columns), name)


def _places(n: int, m: int, offset: int, like: Array) -> tuple[Array, Array]:
    """Row and column of each element on a diagonal of an n by m matrix."""
    length = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    steps = backend.xp(like).arange(length)
    return steps - min(offset, 0), steps + max(offset, 0)


def diag(x: Tensor | Array, k: int = 0) -> Tensor:
    """The `k`-th diagonal of a matrix; of a vector, the matrix that has it there and zeros elsewhere."""
    x = as_tensor(x, "diag")
    if x.ndim == 2:
        return _diagonal("diag", x, k, 0, 1)
    if x.ndim != 1:
        raise ArgumentError(f"diag takes a vector or a matrix, not shape {x.shape}")
    size = x.size + abs(k)
    place = _places(size, size, k, x._data)
    out = backend.xp(x._data).zeros((size, size), x.dtype)
    out[place] = x._data
    return record("diag", out, lambda g: (g[place],), (x,)) if recording(x) else constant(out)


@guarded("trace")
def trace(x: Tensor | Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal."""
    return _diagonal("trace", x, offset, axis1, axis2).sum(-1)
