"""Adaptive pooling: the size of the result is given, and the windows follow from it.

Along an axis of n elements window i of m goes from `floor(i * n / m)` to `ceil((i + 1) * n / m)`: torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np

from psframework import backend
from psframework.autograd.ops import pool
from psframework.autograd.ops.elementwise import astype
from psframework.autograd.ops.index import index
from psframework.autograd.ops.matmul import matmul
from psframework.autograd.ops.reduce import mean
from psframework.autograd.ops.windows import sizes
from psframework.autograd.record import as_tensor
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

# One size for all axes, or one for each; None keeps an axis as it is.
OutputSize: TypeAlias = int | Sequence[int | None] | None


def adaptive_avg_pool1d(input: Tensor | Array, output_size: OutputSize) -> Tensor:
    """Mean of each of `output_size` windows over the last axis.

    Args:
        input: (batch, channels, length) or (channels, length), floating.
        output_size: length of the result.
    """
    return _avg("adaptive_avg_pool1d", input, output_size, 1)


def adaptive_avg_pool2d(input: Tensor | Array, output_size: OutputSize) -> Tensor:
    """Mean of each of `output_size` windows over the last two axes; 1 is global average pooling.

    Args:
        input: (batch, channels, rows, columns) or (channels, rows, columns), floating.
        output_size: one number, or rows and columns; None keeps an axis.
    """
    return _avg("adaptive_avg_pool2d", input, output_size, 2)


def adaptive_max_pool1d(input: Tensor | Array, output_size: OutputSize) -> Tensor:
    """Largest value of each of `output_size` windows; arguments as `adaptive_avg_pool1d`."""
    return _max("adaptive_max_pool1d", input, output_size, 1)


def adaptive_max_pool2d(input: Tensor | Array, output_size: OutputSize) -> Tensor:
    """Largest value of each of `output_size` windows; arguments as `adaptive_avg_pool2d`."""
    return _max("adaptive_max_pool2d", input, output_size, 2)


def _avg(name: str, input: Tensor | Array, output_size: OutputSize, axes: int) -> Tensor:
    x, wanted, kernel = _prepare(name, input, output_size, axes)
    if max(wanted) == 1:
        return mean(x, tuple(range(-axes, 0)), keepdims=True)
    if kernel is not None:
        return (pool.avg_pool1d, pool.avg_pool2d)[axes - 1](x, kernel)
    dtype = x.dtype
    out = astype(x, np.float32) if backend.is_narrow(dtype) else x
    for axis, m in zip(range(-axes, 0), wanted):
        weights = backend.array_like(_averaging(x.shape[axis], m).astype(out.dtype), out._data)
        out = matmul(out, weights.T) if axis == -1 else matmul(weights, out)
    return out if out.dtype == dtype else astype(out, dtype)


def _max(name: str, input: Tensor | Array, output_size: OutputSize, axes: int) -> Tensor:
    x, wanted, kernel = _prepare(name, input, output_size, axes)
    op = (pool.max_pool1d, pool.max_pool2d)[axes - 1]
    if kernel is not None:
        return op(x, kernel)
    # Windows that overlap become windows side by side; the shorter ones repeat their last element, which
    # changes no maximum.
    chosen = [_elements(n, m) for n, m in zip(x.shape[-axes:], wanted)]
    grid = np.ix_(*[elements.reshape(-1) for elements in chosen])
    places = tuple([backend.array_like(along, x._data) for along in grid])
    return op(index(x, (..., *places)), [elements.shape[1] for elements in chosen])


def _prepare(
    name: str, input: Tensor | Array, output_size: OutputSize, axes: int
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...] | None]:
    """The tensor, the result's size, and the kernel if all windows are alike and side by side."""
    x = as_tensor(input, name)
    where = ("length", "rows, columns")[axes - 1]
    if x.ndim not in (axes + 1, axes + 2):
        raise ArgumentError(f"{name}: x must be (batch, channels, {where}), got {x.shape}")
    if not backend.is_floating(x.dtype):
        raise ArgumentError(f"{name}: dtype {x.dtype} is not floating: convert with .astype(np.float32)")
    lengths = x.shape[-axes:]
    if min(lengths) < 1:
        raise ArgumentError(f"{name}: an image of {lengths} has no elements")
    each = output_size if isinstance(output_size, Sequence) else (output_size,) * axes
    if len(each) == axes:
        each = [n if m is None else m for n, m in zip(lengths, each)]
    wanted = sizes(name, "output_size", each, axes, 1)  # type: ignore[arg-type]
    if any(n % m for n, m in zip(lengths, wanted)):
        return x, wanted, None
    return x, wanted, tuple([n // m for n, m in zip(lengths, wanted)])


def _bounds(n: int, m: int) -> tuple[Array, Array]:
    """Start and end of each of m windows over n elements."""
    i = np.arange(m)
    return i * n // m, -((i + 1) * -n // m)


def _averaging(n: int, m: int) -> Array:
    """(m, n): row i averages the elements of window i."""
    starts, ends = _bounds(n, m)
    within = (np.arange(n) >= starts[:, None]) & (np.arange(n) < ends[:, None])
    return cast(Array, within / (ends - starts)[:, None])


def _elements(n: int, m: int) -> Array:
    """(m, longest window): the elements of each window, the last one repeated where it is shorter."""
    starts, ends = _bounds(n, m)
    longest = np.arange((ends - starts).max())
    return cast(Array, np.minimum(starts[:, None] + longest, ends[:, None] - 1))
