"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from psframework import backend
from psframework.autograd.record import as_tensor, constant, needs_grad, record, recording, sum_to
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError


def product(a: Array, b: Array) -> Array:
    """`a @ b` of arrays; 16-bit floats are multiplied and summed in float32."""
    if a.dtype.itemsize == 2 and (backend.is_narrow(a.dtype) or backend.is_narrow(b.dtype)):
        dtype = np.result_type(a.dtype, b.dtype)
        return (backend.widen(a) @ backend.widen(b)).astype(dtype)
    return a @ b


def sum_rows(array: Array, dtype: DType) -> Array:
    """Sum over the first axis in `dtype`; 16-bit floats are summed in float32."""
    reduce = backend.xp(array).add.reduce
    if array.dtype == dtype and not backend.is_narrow(dtype):
        return cast(Array, reduce(array, 0))
    return cast(
        Array, reduce(array, 0, dtype=np.float32 if backend.is_narrow(dtype) else dtype).astype(dtype)
    )


def linear(x: Tensor | Array, weight: Tensor | Array, bias: Tensor | Array | None = None) -> Tensor:
    """`x @ weight.T + bias` in one node.

    Args:
        x: (..., in).
        weight: (out, in), as torch has it.
        bias: (out,) or None.

    Returns:
        (..., out).

    Raises:
        ArgumentError: shapes that do not fit.
    """
    x, weight = as_tensor(x, "linear"), as_tensor(weight, "linear")
    bias = None if bias is None else as_tensor(bias, "linear")
    rows, w = x._data, weight._data
    if w.ndim != 2 or not rows.ndim or rows.shape[-1] != w.shape[1]:
        raise ArgumentError(
            f"linear: x of shape {rows.shape} needs a weight (out, {rows.shape[-1:]}), got {w.shape}"
        )
    if bias is not None and bias._data.shape != w.shape[:1]:
        raise ArgumentError(f"linear: weight {w.shape} needs a bias ({w.shape[0]},), got {bias.shape}")
    shape = rows.shape
    if len(shape) != 2:
        rows = rows.reshape(-1, shape[-1])
    out = product(rows, w.T)
    if bias is not None:
        if bias._data.dtype == out.dtype:
            out += bias._data
        else:
            out = out + bias._data
    if len(shape) != 2:
        out = out.reshape(*shape[:-1], w.shape[0])
    if not recording(x, weight, bias):
        return constant(out)
    return _record_linear(x, weight, bias, rows, out)


def _record_linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Array, out: Array) -> Tensor:
    shape, w = x._data.shape, weight._data
    x_needs, weight_needs, bias_needs = x._requires_grad, weight._requires_grad, needs_grad(bias)
    x_dtype, b_dtype = rows.dtype, w.dtype if bias is None else bias._data.dtype
    if not weight_needs:
        rows = None  # type: ignore[assignment]  # only the weight's gradient reads it
    flat = len(shape) == 2

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = gradient if flat else gradient.reshape(-1, w.shape[0])
        into_x = into_weight = into_bias = None
        if weight_needs:
            into_weight = product(g.T, rows)
            if into_weight.dtype != w.dtype:
                into_weight = into_weight.astype(w.dtype)
        if bias_needs:
            into_bias = sum_rows(g, b_dtype)
        if x_needs:
            into_x = product(g, w)
            if into_x.dtype != x_dtype:
                into_x = into_x.astype(x_dtype)
            if not flat:
                into_x = into_x.reshape(shape)
        return into_x, into_weight, into_bias

    return record(
        "linear", out, rule, (x, weight, bias), (x if weight_needs else None, weight if x_needs else None)
    )


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
        flat = product(rows.reshape(-1, rows.shape[-1]).T, g.reshape(-1, g.shape[-1]))
        return flat.reshape(shape).astype(dtype, copy=False)
    return sum_to(product(rows.swapaxes(-1, -2), g), shape, dtype)
