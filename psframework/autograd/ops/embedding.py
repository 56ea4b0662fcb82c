"""Rows of a table by their ids, and the gradient of the table: dense, or only the rows that were used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops.labels import in_range
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.segments import group, sum_segments
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError


@guarded("embedding")
def embedding(
    input: Tensor | Array,
    weight: Tensor | Array,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table.

    Args:
        input: ids of any shape, integers in [0, rows).
        weight: (rows, size), floating.
        padding_idx: a row that gets no gradient, counted from the end if negative.
        max_norm: rows that are used and longer are first shortened to it, in place.
        norm_type: of that length: p of the p-norm, above 0; inf for the largest magnitude.
        scale_grad_by_freq: divide each row's gradient by how often the row is in `input`.
        sparse: give the gradient of the table as `SparseRows`: rows that are not used cost nothing.

    Returns:
        The shape of `input`, with the axis of `size` last.

    Raises:
        ArgumentError: ids that are no integers, or name no row.
    """
    weight = checked_table("embedding", weight)
    ids = checked_ids("embedding", input, len(weight._data))
    padding = padding_row("embedding", padding_idx, len(weight._data))
    if max_norm is not None:
        shorten_rows(weight, ids, max_norm, norm_type)
    out = weight._data.take(ids, axis=0)
    if not recording(weight):
        return constant(out)
    flat, shape, dtype = ids.reshape(-1), weight.shape, weight.dtype

    def rule(gradient: Array) -> Sequence[Array]:
        rows, values = flat, gradient.reshape(-1, shape[1])
        if padding is not None:
            rows, values = _without(rows, values, padding)
        if scale_grad_by_freq:
            values = by_frequency(rows, values, shape[0])
        return (table_gradient(rows, values, shape, dtype, sparse),)

    return record("embedding", out, rule, (weight,))


def checked_table(name: str, weight: Tensor | Array) -> Tensor:
    """The table as a tensor of two axes."""
    weight = as_tensor(weight, name)
    if weight.ndim != 2 or not backend.is_floating(weight.dtype):
        raise ArgumentError(
            f"{name}: weight must be a floating table (rows, size), not {weight.dtype} {weight.shape}"
        )
    return weight


def checked_ids(name: str, input: Tensor | Array, rows: int) -> Array:
    """Ids as an array of native integers, each of which names a row."""
    ids: Array = input._data if isinstance(input, Tensor) else input
    if not backend.is_array(ids) or ids.dtype.kind not in "iu":
        kind = ids.dtype if backend.is_array(ids) else type(ids).__name__
        raise ArgumentError(f"{name}: ids must be an array of integers, not {kind}: use .astype(np.int64)")
    if not in_range(ids, rows):
        flat = ids.reshape(-1).astype(np.int64)
        bad = int(flat[(flat < 0) | (flat >= rows)][0])
        raise ArgumentError(f"{name}: id {bad} names no row of a table of {rows}: ids must be in [0, {rows})")
    return ids.astype(np.intp, copy=False)


def padding_row(name: str, padding_idx: int | None, rows: int) -> int | None:
    """The row of `padding_idx`, which may count from the end."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ArgumentError(f"{name}: padding_idx {padding_idx} names no row of a table of {rows}")
    return padding_idx % rows


def shorten_rows(weight: Tensor, ids: Array, max_norm: float, norm_type: float) -> None:
    """Scale those of the rows that are longer than `max_norm` to it, in place."""
    if not norm_type > 0:
        raise ArgumentError(f"embedding: norm_type must be above 0, not {norm_type!r}")
    table = weight._data
    xp = backend.xp(table)
    used = xp.unique(ids)
    rows = backend.widen(table.take(used, axis=0))
    if norm_type == np.inf:
        lengths = abs(rows).max(1, keepdims=True)
    else:
        lengths = xp.add.reduce(abs(rows) ** norm_type, 1, keepdims=True) ** (1 / norm_type)
    table[used] = (rows * xp.where(lengths > max_norm, max_norm / (lengths + 1e-7), 1)).astype(table.dtype)
    weight.bump_version()


def by_frequency(rows: Array, values: Array, count: int) -> Array:
    """Each value divided by how often its row comes."""
    times = backend.xp(rows).bincount(rows, minlength=count).take(rows)
    values = backend.widen(values)
    return values / times.reshape(-1, 1).astype(values.dtype)  # type: ignore[no-any-return]


def table_gradient(
    rows: Array,
    values: Array,
    shape: tuple[int, ...],
    dtype: DType,
    sparse: bool,
    picks: Array | None = None,
) -> Array:
    """The gradient of a table; contributions to one row are summed, in a fixed order.

    Args:
        rows: (n,) row of each contribution.
        values: (n, size), or with `picks` any number of rows of that size.
        shape: of the table.
        dtype: of the table.
        sparse: whether to give it as `SparseRows`.
        picks: (n,) which of `values` each contribution is.
    """
    order, starts, sizes = group(rows, shape[0])
    used = rows.take(order.take(starts))
    sums = sum_segments(values, order if picks is None else picks.take(order), sizes)
    if sparse:
        return SparseRows(used, sums.astype(dtype, copy=False), shape, coalesced=True)  # type: ignore[return-value]
    into: Array = backend.xp(values).zeros(shape, dtype)
    into[used] = sums.astype(dtype, copy=False)
    return into


def _without(rows: Array, values: Array, row: int) -> tuple[Array, Array]:
    (kept,) = backend.xp(rows).nonzero(rows != row)
    return rows.take(kept), values.take(kept, axis=0)
