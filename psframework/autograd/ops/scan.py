"""Running sums and products along an axis, products over axes, and differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.reduce import normal_axes, normal_axis
from psframework.autograd.ops.shape import along
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError


def _as(array: Any, dtype: DType) -> Array:
    return backend.as_array(array).astype(dtype, copy=False)


def _from_the_end(g: Array, axis: int) -> Array:
    """Running sums from the last element to the first."""
    xp = backend.xp(g)
    return xp.flip(xp.cumsum(xp.flip(g, axis), axis=axis), axis)  # type: ignore[no-any-return]


def cumsum(x: Tensor | Array, axis: int | None = None) -> Tensor:
    """Running sums along `axis`, or of the flattened array. 16-bit floats are summed in float32."""
    x, place = along("cumsum", x, axis)
    data, dtype = x._data, x._data.dtype
    out = backend.xp(data).cumsum(backend.widen(data), axis=place)
    if backend.is_narrow(dtype):
        out = out.astype(dtype)
    if not recording(x):
        return constant(out)
    return record("cumsum", out, lambda g: (_as(_from_the_end(backend.widen(g), place), dtype),), (x,))


def cumprod(x: Tensor | Array, axis: int | None = None) -> Tensor:
    """Running products along `axis`, or of the flattened array; derivatives are right with zeros too."""
    x, place = along("cumprod", x, axis)
    data, dtype = x._data, x._data.dtype
    wide = backend.widen(data)
    products = backend.xp(wide).cumprod(wide, axis=place)
    out = _as(products, dtype) if backend.is_narrow(dtype) else products
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        return (_as(_into_factors(backend.widen(gradient), wide, products, place), dtype),)

    return record("cumprod", out, rule, (x,), (x,), saves_output=True)


def _into_factors(g: Array, x: Array, products: Array, axis: int) -> Array:
    """The gradient of running products.

    Before the first zero of a line it is the sum of g * products from there on, over x. At the first zero,
    that sum without this factor. Behind it, 0.
    """
    xp = backend.xp(x)
    zeros = xp.cumsum(x == 0, axis=axis)
    first = (x == 0) & (zeros == 1)
    divisor = xp.where(x == 0, 1, x)
    before = xp.where(zeros == 0, _from_the_end(g * products, axis) / divisor, 0)
    # With 1 in place of all that precedes the first zero, and of itself: the products behind it.
    behind = xp.cumprod(xp.where((zeros == 0) | first, 1, x), axis=axis)
    in_front = xp.cumprod(xp.where(zeros == 0, x, 1), axis=axis)
    at_zero = _from_the_end(xp.where(zeros == 0, 0, g * behind), axis) * in_front
    return xp.where(first, at_zero, before).astype(x.dtype)  # type: ignore[no-any-return]


def prod(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Product over `axis` (all by default); derivatives are right with zeros too."""
    x = as_tensor(x, "prod")
    data, dtype, shape = x._data, x._data.dtype, x._data.shape
    axes = normal_axes("prod", len(shape), axis)
    wide = backend.widen(data)
    out = backend.as_array(backend.xp(wide).prod(wide, axis=axes, keepdims=keepdims))
    if backend.is_narrow(dtype):
        out = out.astype(dtype)
    if not recording(x):
        return constant(out)
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    order = (*(i for i in range(len(shape)) if i not in axes), *axes)
    moved = tuple(shape[i] for i in order)
    length = int(np.prod([shape[i] for i in axes], dtype=np.int64))

    def rule(gradient: Array) -> Sequence[Array]:
        lines = wide.transpose(order).reshape(*moved[: len(shape) - len(axes)], length)
        others = _all_but_one(lines).reshape(moved).transpose([order.index(i) for i in range(len(shape))])
        return (_as(backend.widen(gradient).reshape(kept) * others, dtype),)

    return record("prod", out, rule, (x,), (x,))


def _all_but_one(x: Array) -> Array:
    """For each element the product of all others on the last axis, without dividing by it."""
    xp = backend.xp(x)
    left, right = xp.ones_like(x), xp.ones_like(x)
    left[..., 1:] = xp.cumprod(x[..., :-1], axis=-1)
    right[..., :-1] = xp.flip(xp.cumprod(xp.flip(x[..., 1:], -1), axis=-1), -1)
    return left * right  # type: ignore[no-any-return]


@guarded("diff")
def diff(x: Tensor | Array, n: int = 1, axis: int = -1) -> Tensor:
    """Differences of neighbours along `axis`, `n` times over."""
    x = as_tensor(x, "diff")
    place = normal_axis("diff", x.ndim, axis)
    if n < 0:
        raise ArgumentError(f"diff: n must be 0 or more, not {n}")
    data = x._data
    xp, shape, dtype = backend.xp(data), data.shape, data.dtype
    out = xp.diff(data, n, place)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        if not gradient.size:
            return (xp.zeros(shape, dtype),)
        g = backend.widen(gradient)
        edge = xp.zeros((*shape[:place], 1, *shape[place + 1 :]), g.dtype)
        for _ in range(n):
            g = -xp.diff(xp.concatenate([edge, g, edge], axis=place), 1, place)
        return (_as(g, dtype),)

    return record("diff", out, rule, (x,))
