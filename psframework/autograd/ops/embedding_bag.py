"""Sums, means or maxima of bags of rows of a table, without a copy of all those rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psframework import backend
from psframework.autograd.ops.embedding import (
    by_frequency,
    checked_ids,
    checked_table,
    padding_row,
    shorten_rows,
    table_gradient,
)
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.segments import sum_segments
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

MODES = ("sum", "mean", "max")


class _Bags(NamedTuple):
    """Ids of all bags, one bag after the other.

    Attributes:
        ids: (n,) rows of the table.
        owners: (n,) the bag of each, ascending.
        sizes: (bags,) number of ids of each.
        kept: (n,) places in the input, if padding was left out of it.
    """

    ids: Array
    owners: Array
    sizes: Array
    kept: Array | None


@guarded("embedding_bag")
def embedding_bag(
    input: Tensor | Array,
    weight: Tensor | Array,
    offsets: Tensor | Array | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of a table, summed (or averaged, or their maximum taken) over bags of ids.

    Args:
        input: ids, integers: (bags, length) for bags of one length, or (n,) with `offsets`.
        weight: (rows, size), floating.
        offsets: (bags,) where in a flat `input` each bag starts, ascending from 0.
        max_norm: rows that are used and longer are first shortened to it, in place.
        norm_type: of that length: p of the p-norm.
        scale_grad_by_freq: divide each row's gradient by how often the row is in `input`.
        mode: "sum", "mean" or "max".
        sparse: give the gradient of the table as `SparseRows`; not with "max".
        per_sample_weights: factors of the rows, of the shape of `input`; only with "sum".
        include_last_offset: whether `offsets` has a last item more, the length of `input`.
        padding_idx: an id that takes no part, counted from the end if negative.

    Returns:
        (bags, size); zeros for a bag without ids.

    Raises:
        ArgumentError: ids that are no integers or name no row, or options that do not go together.
    """
    if mode not in MODES:
        raise ArgumentError(f"embedding_bag: mode {mode!r} is none of {', '.join(MODES)}")
    if mode == "max" and (sparse or scale_grad_by_freq):
        raise ArgumentError("embedding_bag: mode 'max' goes neither with sparse nor with scale_grad_by_freq")
    weight = checked_table("embedding_bag", weight)
    count = len(weight._data)
    ids = checked_ids("embedding_bag", input, count)
    factors = None
    if per_sample_weights is not None:
        factors = as_tensor(per_sample_weights, "embedding_bag")
        if mode != "sum" or factors.shape != ids.shape:
            raise ArgumentError(
                f"embedding_bag: per_sample_weights {factors.shape} go with mode 'sum' and have the shape of "
                f"input, {ids.shape}; mode is {mode!r}"
            )
    bags = _bags(ids, offsets, include_last_offset, padding_row("embedding_bag", padding_idx, count))
    if max_norm is not None:
        shorten_rows(weight, bags.ids, max_norm, norm_type)
    if factors is not None:
        return _weighted(bags, weight, factors, scale_grad_by_freq, sparse)
    if mode == "max":
        return _maxima(bags, weight)
    return _sums(bags, weight, mode == "mean", scale_grad_by_freq, sparse)


def _bags(ids: Array, offsets: Tensor | Array | None, include_last: bool, padding: int | None) -> _Bags:
    xp = backend.xp(ids)
    if ids.ndim == 2:
        if offsets is not None:
            raise ArgumentError(
                "embedding_bag: offsets go with a flat input: one of two axes has bags as rows"
            )
        count, length = ids.shape
        sizes = xp.full(count, length, np.intp)
        owners = xp.repeat(xp.arange(count), length)
    elif ids.ndim == 1 and offsets is not None:
        starts = _checked_offsets(offsets, len(ids), include_last)
        count = len(starts)
        sizes = xp.concatenate([starts[1:], xp.full(min(count, 1), len(ids), np.intp)]) - starts
        owners = xp.searchsorted(starts, xp.arange(len(ids)), side="right") - 1
    else:
        raise ArgumentError(f"embedding_bag: input {ids.shape} must be (bags, length), or (n,) with offsets")
    flat = ids.reshape(-1)
    if padding is None:
        return _Bags(flat, owners, sizes, None)
    (kept,) = xp.nonzero(flat != padding)
    owners = owners.take(kept)
    return _Bags(flat.take(kept), owners, xp.bincount(owners, minlength=count), kept)


def _checked_offsets(offsets: Tensor | Array, length: int, include_last: bool) -> Array:
    starts: Array = offsets._data if isinstance(offsets, Tensor) else offsets
    if not backend.is_array(starts) or starts.dtype.kind not in "iu" or starts.ndim != 1:
        raise ArgumentError("embedding_bag: offsets must be an array of integers with one axis")
    starts = starts.astype(np.intp, copy=False)
    if include_last and (not len(starts) or int(starts[-1]) != length):
        raise ArgumentError(f"embedding_bag: the last offset must be the length of input, {length}")
    if len(starts) and (int(starts[0]) != 0 or bool((starts[1:] < starts[:-1]).any())):
        raise ArgumentError("embedding_bag: offsets must ascend from 0")
    if len(starts) and int(starts[-1]) > length:
        raise ArgumentError(f"embedding_bag: offset {int(starts[-1])} is beyond the {length} ids of input")
    if not len(starts) and length:
        raise ArgumentError(f"embedding_bag: {length} ids, but no bag: offsets must ascend from 0")
    return starts[:-1] if include_last else starts


def _sums(bags: _Bags, weight: Tensor, mean: bool, scale: bool, sparse: bool) -> Tensor:
    out, divisor = sum_segments(weight._data, bags.ids, bags.sizes), None
    if mean:
        divisor = backend.xp(out).maximum(bags.sizes, 1).reshape(-1, 1).astype(out.dtype)
        out /= divisor
    out = out.astype(weight.dtype, copy=False)
    if not recording(weight):
        return constant(out)
    shape, dtype = weight.shape, weight.dtype

    def rule(gradient: Array) -> Sequence[Array]:
        values = backend.widen(gradient)
        values = values if divisor is None else values / divisor
        if not scale:
            return (table_gradient(bags.ids, values, shape, dtype, sparse, picks=bags.owners),)
        values = by_frequency(bags.ids, values.take(bags.owners, axis=0), shape[0])
        return (table_gradient(bags.ids, values, shape, dtype, sparse),)

    return record("embedding_bag", out, rule, (weight,))


def _weighted(bags: _Bags, weight: Tensor, factors: Tensor, scale: bool, sparse: bool) -> Tensor:
    """Sums of rows times factors, which get gradients too."""
    table, flat = weight._data, backend.widen(factors._data.reshape(-1))
    if bags.kept is not None:
        flat = flat.take(bags.kept)
    xp = backend.xp(table)
    scaled = backend.widen(table.take(bags.ids, axis=0)) * flat.reshape(-1, 1)
    out = sum_segments(scaled, xp.arange(len(bags.ids)), bags.sizes).astype(weight.dtype, copy=False)
    if not recording(weight, factors):
        return constant(out)
    needs = weight._requires_grad, factors._requires_grad
    shape, kinds, places = factors.shape, (weight.dtype, factors.dtype), bags.kept

    def rule(gradient: Array) -> Sequence[Array | None]:
        values = backend.widen(gradient).take(bags.owners, axis=0)
        into_table = into_factors = None
        if needs[1]:
            along = xp.add.reduce(values * backend.widen(table.take(bags.ids, axis=0)), 1)
            into_factors = xp.zeros(shape, kinds[1])
            into_factors.reshape(-1)[... if places is None else places] = along.astype(kinds[1], copy=False)
        if needs[0]:
            values = values * flat.reshape(-1, 1)
            if scale:
                values = by_frequency(bags.ids, values, len(table))
            into_table = table_gradient(bags.ids, values, table.shape, kinds[0], sparse)
        return into_table, into_factors

    return record("embedding_bag", out, rule, (weight, factors), saved=(weight, factors))


def _maxima(bags: _Bags, weight: Tensor) -> Tensor:
    """The maximum of each column over each bag; the first of equal ones gets the gradient."""
    table = weight._data
    xp, (count, size) = backend.xp(table), table.shape
    (full,) = xp.nonzero(bags.sizes)
    out = xp.zeros((len(bags.sizes), size), table.dtype)
    places = bags.ids[:0]  # in the flat table, of each column of each bag that has ids
    if len(full):
        ids = _padded(bags, full)
        values = table.take(ids, axis=0)
        best = values.argmax(1)
        out[full] = xp.take_along_axis(values, best.reshape(len(full), 1, size), axis=1)[:, 0]
        places = (xp.take_along_axis(ids, best, axis=1) * size + xp.arange(size)).reshape(-1)
    if not recording(weight):
        return constant(out)
    dtype = weight.dtype

    def rule(gradient: Array) -> Sequence[Array]:
        values = backend.widen(gradient.take(full, axis=0)).reshape(-1)
        if xp is np:
            into = np.zeros(count * size, values.dtype)
            np.add.at(into, places, values)  # quick for one axis, and in order
            return (into.reshape(count, size).astype(dtype, copy=False),)
        return (table_gradient(places, values, (count * size,), dtype, False).reshape(count, size),)

    return record("embedding_bag", out, rule, (weight,))


def _padded(bags: _Bags, full: Array) -> Array:
    """(full bags, longest) ids; short bags repeat their first, which does not change a maximum."""
    xp = backend.xp(full)
    sizes = bags.sizes.take(full)
    starts = xp.cumsum(sizes) - sizes
    steps = xp.arange(int(sizes.max())).reshape(1, -1)
    places = starts.reshape(-1, 1) + xp.where(steps < sizes.reshape(-1, 1), steps, 0)
    return bags.ids.take(places)  # type: ignore[no-any-return]
