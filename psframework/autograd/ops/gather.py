"""Picking elements by arrays of indices along one axis, by masks, and putting them there.

`gather`, `scatter`, `scatter_add`, `index_select` and `index_add` are torch's, `take`, `take_along_axis` and
`put_along_axis` NumPy's. Nothing here changes its arguments. On the CPU what meets in one place is added in a
fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from psframework import backend
from psframework.autograd.ops.arithmetic import where
from psframework.autograd.ops.index import add_at, index, put_rule
from psframework.autograd.ops.reduce import normal_axis
from psframework.autograd.ops.shape import along, broadcast_to
from psframework.autograd.record import (
    as_tensor,
    constant,
    guarded,
    needs_grad,
    record,
    recording,
    value_of,
)
from psframework.autograd.tensor import Number, Operand, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Indices = Tensor | Array | Sequence[int] | int


def _integers(name: str, indices: Indices, like: Tensor) -> Array:
    """Indices as an integer array where `like` is."""
    if isinstance(indices, Tensor):
        found = indices._data
    elif backend.is_array(indices):
        found = cast(Array, indices)
    else:
        host = np.asarray(indices)
        found = backend.array_like(indices, like._data, host.dtype if host.size else np.dtype(np.int64))
    if found.dtype.kind not in "iu":
        raise ArgumentError(f"{name}: indices must be of an integer dtype, not {found.dtype}")
    return found


@guarded("take")
def take(x: Tensor | Array, indices: Indices, axis: int | None = None) -> Tensor:
    """The elements of `axis` at `indices`, whose axes take the place of `axis`.

    Args:
        x: any shape.
        indices: integers, any shape; negative ones count from the end.
        axis: None for the elements in their flat order.
    """
    x, place = along("take", x, axis)
    return index(x, (*(slice(None),) * place, _integers("take", indices, x)), "take")


@guarded("index_select")
def index_select(x: Tensor | Array, axis: int, index: Indices) -> Tensor:
    """The elements of `axis` at the places in `index`, (n,)."""
    x = as_tensor(x, "index_select")
    picks = _integers("index_select", index, x)
    if picks.ndim != 1:
        raise ArgumentError(f"index_select: the index must have one axis, not shape {picks.shape}")
    place = normal_axis("index_select", x.ndim, axis)
    return _index(x, (*(slice(None),) * place, picks), "index_select")


@guarded("take_along_axis")
def take_along_axis(x: Tensor | Array, indices: Indices, axis: int | None = -1) -> Tensor:
    """For each line of `x` along `axis` the elements at the same line of `indices`.

    Args:
        x: any shape.
        indices: integers, as many axes as `x`; the axes other than `axis` are broadcast.
        axis: None for the elements in their flat order.
    """
    x, axis = along("take_along_axis", x, axis)
    picks = _integers("take_along_axis", indices, x)
    return index(x, _lines("take_along_axis", x, picks, axis, x.shape), "take_along_axis")


@guarded("gather")
def gather(x: Tensor | Array, axis: int, index: Indices) -> Tensor:
    """As `take_along_axis`, by torch's rule: the other axes of `index` may be shorter than those of `x`."""
    x = as_tensor(x, "gather")
    picks = _integers("gather", index, x)
    return _index(x, _lines("gather", x, picks, axis, picks.shape), "gather")


_index = index  # `index` is the name of an argument above


def _lines(name: str, x: Tensor, picks: Array, axis: int, lengths: tuple[int, ...]) -> tuple[Array, ...]:
    """A key for `x`: `picks` along `axis`, each place of the first `lengths` along the others."""
    place = normal_axis(name, x.ndim, axis)
    if picks.ndim != x.ndim:
        raise ArgumentError(f"{name}: indices of shape {picks.shape} need as many axes as shape {x.shape}")
    if any(n > m for i, (n, m) in enumerate(zip(lengths, x.shape)) if i != place):
        raise ArgumentError(f"{name}: indices of shape {picks.shape} reach beyond shape {x.shape}")
    xp = backend.xp(x._data)
    key = [xp.arange(n).reshape((n,) + (1,) * (x.ndim - 1 - i)) for i, n in enumerate(lengths)]
    key[place] = picks
    return tuple(key)


@guarded("scatter")
def scatter(x: Tensor | Array, axis: int, index: Indices, src: Operand) -> Tensor:
    """`x` with the elements of `src` put at the places that `gather` would take them from.

    Args:
        x: any shape.
        axis: along which `index` counts.
        index: integers, as many axes as `x`, none longer than that of `x` (`axis` excepted) or of `src`. Of a
            place named twice the last one counts on the CPU, any one on CUDA.
        src: a tensor, or a number.
    """
    x = as_tensor(x, "scatter")
    picks = _integers("scatter", index, x)
    return _put("scatter", x, _lines("scatter", x, picks, axis, picks.shape), _source("scatter", src, picks))


@guarded("scatter_add")
def scatter_add(x: Tensor | Array, axis: int, index: Indices, src: Tensor | Array) -> Tensor:
    """As `scatter`, but added to what is there, once for each time that a place is named."""
    x = as_tensor(x, "scatter_add")
    picks = _integers("scatter_add", index, x)
    key = _lines("scatter_add", x, picks, axis, picks.shape)
    _check_range(picks, x.shape[axis])
    return _add("scatter_add", x, key, _source("scatter_add", src, picks))


def _source(name: str, src: Operand, picks: Array) -> Tensor | Number:
    """The part of `src` that `picks` speaks of."""
    if isinstance(src, int | float):
        return src
    source = as_tensor(src, name)
    if source.ndim != picks.ndim or any(n > m for n, m in zip(picks.shape, source.shape)):
        raise ArgumentError(f"{name}: index of shape {picks.shape} for a source of shape {source.shape}")
    return source if source.shape == picks.shape else index(source, tuple(slice(n) for n in picks.shape))


@guarded("put_along_axis")
def put_along_axis(x: Tensor | Array, indices: Indices, values: Operand, axis: int | None) -> Tensor:
    """`x` with `values` put at the places that `take_along_axis` would take them from, as a copy."""
    shape = as_tensor(x, "put_along_axis").shape
    x, axis = along("put_along_axis", x, axis)
    picks = _integers("put_along_axis", indices, x)
    out = _put("put_along_axis", x, _lines("put_along_axis", x, picks, axis, x.shape), values)
    return out if out.shape == shape else out.reshape(shape)


@guarded("index_add")
def index_add(
    x: Tensor | Array, axis: int, index: Indices, source: Tensor | Array, alpha: float = 1
) -> Tensor:
    """`x` with `alpha * source` added to its slices along `axis`: to the one that each of `index` names.

    Args:
        x: any shape.
        axis: of the slices.
        index: integers, (n,).
        source: the shape of `x`, but n along `axis`.
        alpha: a factor.
    """
    x = as_tensor(x, "index_add")
    place = normal_axis("index_add", x.ndim, axis)
    picks, part = _integers("index_add", index, x), as_tensor(source, "index_add")
    wanted = (*x.shape[:place], *picks.shape, *x.shape[place + 1 :])
    if picks.ndim != 1 or part.shape != wanted:
        raise ArgumentError(f"index_add: a source of shape {wanted} is needed, got {part.shape}")
    _check_range(picks, x.shape[place])
    return _add("index_add", x, (*(slice(None),) * place, picks), part if alpha == 1 else part * alpha)


def _put(name: str, x: Tensor, key: Any, values: Operand) -> Tensor:
    out = x._data.copy()
    out[key] = value_of(values, name)
    return record(name, out, put_rule(key, x, values), (x, values)) if recording(x, values) else constant(out)


def _check_range(picks: Array, length: int) -> None:
    """Additions go by flat places: there an index too large would be one of the next line."""
    if picks.size and not -length <= picks.min() <= picks.max() < length:
        raise IndexError(f"indices from {picks.min()} to {picks.max()} for an axis of {length} elements")


def _add(name: str, x: Tensor, key: Any, source: Tensor | Number) -> Tensor:
    part = as_tensor(source, name)._data
    out = x._data.copy()
    add_at(out, key, part.astype(out.dtype, copy=False))
    if not recording(x, source):
        return constant(out)
    dtype = part.dtype if needs_grad(source) else None
    return record(
        name, out, lambda g: (g, None if dtype is None else g[key].astype(dtype, copy=False)), (x, source)
    )


@guarded("masked_fill")
def masked_fill(x: Tensor | Array, mask: Tensor | Array, value: Operand) -> Tensor:
    """`x` with `value` wherever `mask` holds.

    Args:
        x: any shape.
        mask: booleans of a shape that broadcasts to that of `x`.
        value: a number, or a tensor without axes.
    """
    x, mask = as_tensor(x, "masked_fill"), as_tensor(mask, "masked_fill")
    value_of(value, "masked_fill")
    if mask.dtype.kind != "b":
        raise ArgumentError(f"masked_fill: the mask must be of dtype bool, not {mask.dtype}")
    if getattr(value, "shape", ()) != ():
        raise ArgumentError(f"masked_fill: one value, not shape {value.shape}: use where")  # type: ignore[union-attr]
    if np.broadcast_shapes(mask.shape, x.shape) != x.shape:
        raise ArgumentError(f"masked_fill: a mask of shape {mask.shape} is larger than shape {x.shape}")
    return where(mask, value, x)


@guarded("masked_select")
def masked_select(x: Tensor | Array, mask: Tensor | Array) -> Tensor:
    """The elements of `x` where `mask` holds, as one axis; the two are broadcast."""
    x, mask = as_tensor(x, "masked_select"), as_tensor(mask, "masked_select")
    if mask.dtype.kind != "b":
        raise ArgumentError(f"masked_select: the mask must be of dtype bool, not {mask.dtype}")
    shape = np.broadcast_shapes(x.shape, mask.shape)
    chosen = backend.xp(mask._data).broadcast_to(mask._data, shape)
    return index(x if x.shape == shape else broadcast_to(x, shape), chosen)


@guarded("nonzero")
def nonzero(x: Tensor | Array) -> tuple[Tensor, ...]:
    """The places where `x` is not 0: an array of indices for each axis; constants of dtype int64."""
    return tuple(constant(places) for places in as_tensor(x, "nonzero")._data.nonzero())
