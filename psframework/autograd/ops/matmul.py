"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast
from weakref import ref

import numpy as np

from psframework import backend
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.offers import claim, total_of
from psframework.autograd.record import as_tensor, constant, explain, record, record_node, recording, sum_to
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError

# Up to this many weights `linear` keeps a row an example in memory. Above, its result lies as (out, batch):
# `w @ x.T` does without transposing the weight, which for a small batch costs a quarter of the product's
# time. `conv` lies so too, and nothing is copied between them.
SMALL = 4096
_FIT = "the last axis of the first must be as long as the last but one of the second"


def product(a: Array, b: Array) -> Array:
    """`a @ b` of arrays of one dtype; 16-bit floats are multiplied and summed in float32."""
    if a.dtype.itemsize == 2 and backend.is_narrow(a.dtype):
        return product(backend.widen(a), backend.widen(b)).astype(np.result_type(a.dtype, b.dtype))
    if b.ndim == 2:
        # For small matrices dot costs less than matmul, and one product less than one for each batch.
        if a.ndim == 2:
            return cast(Array, a.dot(b))
        if a.ndim > 2:
            return cast(Array, _as_rows(a).dot(b).reshape(*a.shape[:-1], b.shape[1]))
    return a @ b


def _as_rows(array: Array) -> Array:
    """All axes but the last made one. (Not by -1: an empty array does not say what it stands for.)"""
    return array if array.ndim == 2 else array.reshape(prod(array.shape[:-1]), array.shape[-1])


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
    x, w = input._data, weight._data
    if w.ndim != 2 or not x.ndim or x.shape[-1] != w.shape[1]:
        wanted = f"(out, {x.shape[-1] if x.ndim else 'in'})"
        raise ArgumentError(
            f"linear: input of shape {x.shape} needs a weight of shape {wanted}, got {w.shape}"
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
    if x.dtype != w.dtype or (b is not None and b.dtype != w.dtype):
        dtype = np.result_type(x.dtype, w.dtype, w.dtype if b is None else b.dtype)
        return linear(input.astype(dtype), weight.astype(dtype), None if bias is None else bias.astype(dtype))
    if x.ndim == 2:
        rows, batch_last = x, w.size > SMALL or x.flags.f_contiguous
    else:
        # What has several axes is added to, and normalised along the last: there the other layout costs more.
        rows, batch_last = _as_rows(x), False
    try:
        out = product(w, rows.T) if batch_last else product(rows, w.T)
        if b is not None:
            out += b.reshape(-1, 1) if batch_last else b
    except (TypeError, ValueError) as error:
        raise explain("linear", error, input, weight, bias) from error
    if batch_last:
        out = out.T
    if x.ndim != 2:
        out = out.reshape(*x.shape[:-1], w.shape[0])
    return _record_linear(input, weight, bias, rows, out, batch_last)


def _record_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Array, out: Array, batch_last: bool
) -> Tensor:
    x_needs, weight_needs = x._requires_grad, weight._requires_grad
    bias_needs = bias is not None and bias._requires_grad
    if not (x_needs or weight_needs or bias_needs) or not is_grad_enabled():
        return constant(out)
    kept = rows if weight_needs else None
    leaf = ref(weight) if weight._node is None else None  # by name only: the rule does not keep it
    w = weight._data if x_needs else None
    shape = None if x._data.ndim == 2 else x._data.shape

    def rule(gradient: Array, wanted: Sequence[bool] = (True, True, True)) -> Sequence[Array | None]:
        g = gradient if shape is None else _as_rows(gradient)
        into_x = None
        if w is not None and wanted[0]:
            into_x = product(w.T, g.T).T if batch_last else product(g, w)
            if shape is not None:
                into_x = into_x.reshape(shape)
        return (
            into_x,
            _into_weight(g, kept, leaf) if kept is not None and wanted[1] else None,
            _sum_rows(g) if bias_needs and wanted[2] else None,
        )

    edges = (
        (x._node or x) if x_needs else None,
        (weight._node or weight) if weight_needs else None,
        (bias._node or bias) if bias is not None and bias_needs else None,
    )
    v, u = x._version, weight._version
    return record_node("linear", out, rule, edges, ((v, v[0]) if weight_needs else (u, u[0]), (u, u[0])))


def _into_weight(g: Array, rows: Array, name: ref[Tensor] | None) -> Array | None:
    leaf = None if name is None else name()
    if leaf is not None and g.dtype == rows.dtype and not backend.is_narrow(g.dtype):
        total = total_of(leaf)
        if total is not None and total.dtype == g.dtype:
            backend.add_product(total, g.T, rows)
            return None
        place = claim(leaf)
        if place is not None and place.dtype == g.dtype:
            return g.T.dot(rows, out=place)
    return product(g.T, rows)


def matmul(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """`a @ b` as NumPy's: axes before the last two are broadcast, arrays of one axis are rows or columns.

    Raises:
        ArgumentError: shapes that do not fit, or an operand without axes.
    """
    a, b = as_tensor(a, "matmul"), as_tensor(b, "matmul")
    x, y = a._data, b._data
    if x.dtype != y.dtype:
        dtype = np.result_type(x.dtype, y.dtype)
        x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    try:
        out = backend.as_array(product(x, y))
    except ValueError as error:
        hint = ValueError(f"shapes {x.shape} and {y.shape} do not fit: {_FIT}")
        raise explain("matmul", hint, a, b) from error
    except TypeError as error:
        raise explain("matmul", error, a, b) from error
    if not recording(a, b):
        return constant(out)
    kept_x = x if b._requires_grad else None
    kept_y = y if a._requires_grad else None
    shapes, kinds = (x.shape, y.shape), (a.dtype, b.dtype)

    def rule(gradient: Array, wanted: Sequence[bool] = (True, True)) -> Sequence[Array | None]:
        g = gradient
        if len(shapes[1]) == 1:
            g = g[..., None]
        if len(shapes[0]) == 1:
            g = g[..., None, :]
        into_a = into_b = None
        if kept_y is not None and wanted[0]:
            into_a = sum_to(_to_left(g, kept_y), shapes[0], kinds[0])
        if kept_x is not None and wanted[1]:
            into_b = _to_right(g, kept_x, shapes[1], kinds[1])
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
        flat = product(_as_rows(rows).T, _as_rows(g))
        return flat.reshape(shape).astype(dtype, copy=False)
    return sum_to(product(rows.swapaxes(-1, -2), g), shape, dtype)
