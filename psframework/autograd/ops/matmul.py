"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from psframework import backend
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.record import as_tensor, constant, record, record_node, recording, sum_to
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError

# Up to this many weights `linear` keeps a row an example in memory. Above, its result lies as (out, batch):
# `w @ x.T` does without transposing the weight, which for a small batch costs a quarter of the product's
# time. `conv` lies so too, and nothing is copied between them.
SMALL = 4096


def product(a: Array, b: Array) -> Array:
    """`a @ b` of arrays; 16-bit floats are multiplied and summed in float32."""
    if a.dtype.itemsize == 2 and backend.is_narrow(a.dtype):
        dtype = np.result_type(a.dtype, b.dtype)
        return (backend.widen(a) @ backend.widen(b)).astype(dtype)
    # For small matrices dot costs less than matmul.
    return a.dot(b) if a.ndim == 2 == b.ndim else a @ b


def _sum_rows(array: Array) -> Array:
    if array.dtype.itemsize == 2:
        return cast(Array, backend.xp(array).add.reduce(array, 0, dtype=np.float32).astype(array.dtype))
    return cast(Array, backend.xp(array).add.reduce(array, 0))


def linear(input: Tensor | Array, weight: Tensor | Array, bias: Tensor | Array | None = None) -> Tensor:
    """`input @ weight.T + bias` in one node.

    Args:
        input: (..., in), floating.
        weight: (out, in), as torch has it.
        bias: (out,) or None.

    Returns:
        (..., out).

    Raises:
        ArgumentError: shapes that do not fit.
    """
    input = input if isinstance(input, Tensor) else as_tensor(input, "linear")
    weight = weight if isinstance(weight, Tensor) else as_tensor(weight, "linear")
    rows, w = input._data, weight._data
    if w.ndim != 2 or not rows.ndim or rows.shape[-1] != w.shape[1]:
        wanted = f"(out, {rows.shape[-1] if rows.ndim else 'in'})"
        raise ArgumentError(
            f"linear: input of shape {rows.shape} needs a weight of shape {wanted}, got {w.shape}"
        )
    if bias is None:
        b = None
    else:
        bias = bias if isinstance(bias, Tensor) else as_tensor(bias, "linear")
        b = bias._data
        if b.shape != w.shape[:1]:
            raise ArgumentError(
                f"linear: weight {w.shape} needs a bias of shape {w.shape[:1]}, got {b.shape}"
            )
    if rows.ndim != 2 or rows.dtype != w.dtype or (b is not None and b.dtype != w.dtype):
        return _linear_of_any(input, weight, bias)
    batch_last = w.size > SMALL or rows.flags.f_contiguous
    out = product(w, rows.T) if batch_last else product(rows, w.T)
    if b is not None:
        out += b.reshape(-1, 1) if batch_last else b
    return _record_linear(input, weight, bias, out.T if batch_last else out, batch_last)


def _linear_of_any(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Several axes, or dtypes that differ: brought to two axes and one dtype first."""
    dtype = np.result_type(x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype)
    x, weight = x.astype(dtype), weight.astype(dtype)
    bias = None if bias is None else bias.astype(dtype)
    rows = x if x.ndim == 2 else x.reshape(int(np.prod(x.shape[:-1], dtype=np.int64)), x.shape[-1])
    out = linear(rows, weight, bias)
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], weight.shape[0])


def _record_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Array, batch_last: bool) -> Tensor:
    x_needs, weight_needs = x._requires_grad, weight._requires_grad
    bias_needs = bias is not None and bias._requires_grad
    if not (x_needs or weight_needs or bias_needs) or not is_grad_enabled():
        return constant(out)
    rows = x._data if weight_needs else None
    w = weight._data if x_needs else None

    def rule(gradient: Array) -> Sequence[Array | None]:
        return (
            None if w is None else product(w.T, gradient.T).T if batch_last else product(gradient, w),
            None if rows is None else product(gradient.T, rows),
            _sum_rows(gradient) if bias_needs else None,
        )

    edges = (
        (x._node or x) if x_needs else None,
        (weight._node or weight) if weight_needs else None,
        (bias._node or bias) if bias is not None and bias_needs else None,
    )
    v, u = x._version, weight._version
    return record_node("linear", out, rule, edges, ((v, v[0]) if weight_needs else (u, u[0]), (u, u[0])))


def matmul(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """`a @ b` as NumPy's: axes before the last two are broadcast, arrays of one axis are rows or columns.

    Raises:
        ArgumentError: shapes that do not fit, or an operand without axes.
    """
    a, b = as_tensor(a, "matmul"), as_tensor(b, "matmul")
    x, y = a._data, b._data
    try:
        out = backend.as_array(product(x, y))
    except ValueError as error:
        raise ArgumentError(
            f"matmul: shapes {x.shape} and {y.shape} do not fit: the last axis of the first must be as long "
            f"as the last but one of the second ({error})"
        ) from error
    if not recording(a, b):
        return constant(out)
    kept_x = x if b._requires_grad else None
    kept_y = y if a._requires_grad else None
    shapes, kinds = (x.shape, y.shape), (x.dtype, y.dtype)

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = gradient
        if len(shapes[1]) == 1:
            g = g[..., None]
        if len(shapes[0]) == 1:
            g = g[..., None, :]
        into_a = None if kept_y is None else sum_to(_to_left(g, kept_y), shapes[0], kinds[0])
        into_b = None if kept_x is None else _to_right(g, kept_x, shapes[1], kinds[1])
        return into_a, into_b

    return record("matmul", out, rule, (a, b), (None if kept_x is None else a, None if kept_y is None else b))


def _to_left(g: Array, y: Array) -> Array:
    if y.ndim == 1:
        return g * y  # (..., n, 1) by (k,)
    return product(g, y.swapaxes(-1, -2))


def _to_right(g: Array, x: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    rows = x[None, :] if x.ndim == 1 else x
    if len(shape) <= 2:
        # One product over all batches, instead of one each and a sum.
        count = int(np.prod(rows.shape[:-1], dtype=np.int64))
        flat = product(rows.reshape(count, rows.shape[-1]).T, g.reshape(count, g.shape[-1]))
        return flat.reshape(shape).astype(dtype, copy=False)
    return sum_to(product(rows.swapaxes(-1, -2), g), shape, dtype)
