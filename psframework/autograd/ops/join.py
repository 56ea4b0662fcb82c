"""Joining tensors, and cutting them into views."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.reduce import normal_axis
from psframework.autograd.ops.shape import atleast_1d, atleast_2d, atleast_3d, is_view
from psframework.autograd.record import (
    as_tensor,
    constant,
    explain,
    guarded,
    record,
    record_many,
    recording,
    share_memory,
)
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Tensors = Sequence["Tensor | Array"]
Sections = int | Sequence[int]


@guarded("concatenate")
def concatenate(tensors: Tensors, axis: int = 0) -> Tensor:
    """The tensors one after the other along `axis`; their other axes are of the same lengths."""
    parts = [as_tensor(t, "concatenate") for t in tensors]
    if not parts:
        raise ArgumentError("concatenate: no tensors")
    place = normal_axis("concatenate", parts[0].ndim, axis)
    return _joined("concatenate", parts, place, [t._data for t in parts])


@guarded("stack")
def stack(tensors: Tensors, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    parts = [as_tensor(t, "stack") for t in tensors]
    if not parts or any(t.shape != parts[0].shape for t in parts):
        raise ArgumentError(f"stack: one or more tensors of one shape, got {[t.shape for t in parts]}")
    place = normal_axis("stack", parts[0].ndim + 1, axis)
    key = (slice(None),) * place + (None,)
    return _joined("stack", parts, place, [t._data[key] for t in parts])


def _joined(name: str, parts: list[Tensor], place: int, arrays: list[Array]) -> Tensor:
    """`arrays` (the parts', or those with an axis more) after one another along the axis `place`."""
    try:
        out = backend.xp(arrays[0]).concatenate(arrays, axis=place)
    except (ValueError, TypeError) as error:
        raise explain(name, error, *parts) from error
    if not recording(*parts):
        return constant(out)
    ends = np.cumsum([a.shape[place] for a in arrays]).tolist()
    likes = [(t.shape, t.dtype) if t._requires_grad else None for t in parts]
    before = (slice(None),) * place

    def rule(gradient: Array) -> Sequence[Array | None]:
        return [
            None
            if like is None
            else gradient[(*before, slice(i, j))].reshape(like[0]).astype(like[1], copy=False)
            for i, j, like in zip([0, *ends], ends, likes)
        ]

    return record(name, out, rule, tuple(parts))


def hstack(tensors: Tensors) -> Tensor:
    """The tensors side by side: along the second axis, or along the only one."""
    parts = [atleast_1d(t) for t in tensors]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Tensors) -> Tensor:
    """The tensors below one another: along the first axis of tensors of two or more, vectors as rows."""
    return concatenate([atleast_2d(t) for t in tensors], 0)


def dstack(tensors: Tensors) -> Tensor:
    """The tensors behind one another: along the third axis."""
    return concatenate([atleast_3d(t) for t in tensors], 2)


@guarded("split")
def split(x: Tensor | Array, indices_or_sections: Sections, axis: int = 0) -> tuple[Tensor, ...]:
    """`x` in parts along `axis`, as views.

    Args:
        x: one or more axes.
        indices_or_sections: a number of equal parts, or where each part after the first begins.
        axis: of the cuts.

    Raises:
        ArgumentError: the axis can't be divided into that many equal parts (`array_split` can).
    """
    x = as_tensor(x, "split")
    place = normal_axis("split", x.ndim, axis)
    n = x.shape[place]
    sections = indices_or_sections
    if isinstance(sections, int | np.integer) and (sections < 1 or n % sections):
        raise ArgumentError(
            f"split: {n} elements along axis {axis} in {sections} equal parts: use array_split"
        )
    return _split("split", x, sections, place)


@guarded("array_split")
def array_split(x: Tensor | Array, indices_or_sections: Sections, axis: int = 0) -> tuple[Tensor, ...]:
    """As `split`; of a number of parts that does not divide the axis, the first ones are longer by one."""
    x = as_tensor(x, "array_split")
    return _split("array_split", x, indices_or_sections, normal_axis("array_split", x.ndim, axis))


def _split(name: str, x: Tensor, sections: Sections, place: int) -> tuple[Tensor, ...]:
    n = x.shape[place]
    if isinstance(sections, int | np.integer):
        if sections < 1:
            raise ArgumentError(f"{name}: {sections} parts: one or more")
        each, extra = divmod(n, int(sections))
        lengths = [each + 1] * extra + [each] * (int(sections) - extra)
        bounds = np.cumsum([0, *lengths]).tolist()
    else:
        bounds = [0, *(slice(operator.index(i)).indices(n)[1] for i in sections), n]
    return _cut(name, x, place, [slice(i, max(i, j)) for i, j in pairwise(bounds)])


@guarded("chunk")
def chunk(x: Tensor | Array, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """`x` in at most `chunks` parts along `axis`, as views, of one length but for the last one."""
    x = as_tensor(x, "chunk")
    place = normal_axis("chunk", x.ndim, axis)
    if chunks < 1:
        raise ArgumentError(f"chunk: {chunks} parts: one or more")
    n = x.shape[place]
    step = max(1, -(-n // chunks))
    return _cut("chunk", x, place, [slice(i, min(i + step, n)) for i in range(0, max(n, 1), step)])


def unbind(x: Tensor | Array, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of `x` along `axis`, as views without that axis."""
    x = as_tensor(x, "unbind")
    place = normal_axis("unbind", x.ndim, axis)
    return _cut("unbind", x, place, list(range(x.shape[place])))


def _cut(name: str, x: Tensor, place: int, cuts: Sequence[slice | int]) -> tuple[Tensor, ...]:
    """`x` at each of `cuts` of the axis `place`, as one node: its backward fills one array."""
    data = x._data
    keys: list[Any] = [(*(slice(None),) * place, cut) for cut in cuts]
    arrays = [backend.as_array(data[key]) for key in keys]
    if not arrays:
        return ()
    if recording(x):
        shape = data.shape  # the rule must not hold the array
        parts = record_many(name, arrays, lambda gs: (_filled(shape, keys, gs),), (x,))
    else:
        parts = tuple(constant(array) for array in arrays)
    return tuple(share_memory(t, x) if is_view(t._data, data) else t for t in parts)


def _filled(shape: tuple[int, ...], keys: list[Any], gradients: Sequence[Array | None]) -> Array:
    some = next(g for g in gradients if g is not None)
    into: Array = backend.xp(some).zeros(shape, some.dtype)
    for key, gradient in zip(keys, gradients):
        if gradient is not None:
            into[key] += gradient  # parts may overlap where the indices of a split go back
    return into
