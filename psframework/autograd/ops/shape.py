"""Operations that move elements without computing: reshape, transpose, expand, concatenate, stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops.reduce import normal_axes
from psframework.autograd.record import as_tensor, constant, record, recording, share_memory, sum_to
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def is_view(out: Array, data: Array) -> bool:
    """Whether `out`, made from `data`, shares its memory."""
    return out.base is not None and (out.base is data or out.base is data.base)


def _viewed(name: str, x: Tensor, out: Array, undo: Callable[[Array], Array]) -> Tensor:
    """The result of an operation that may share memory with `x`; `undo` maps its gradient back."""
    result = record(name, out, lambda g: (undo(g),), (x,)) if recording(x) else constant(out)
    return share_memory(result, x) if is_view(out, x._data) else result


def reshape(x: Tensor | Array, shape: int | Sequence[int]) -> Tensor:
    """`x` with the same elements in another shape; one length may be -1."""
    x = as_tensor(x, "reshape")
    data = x._data
    try:
        out = data.reshape(shape)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"reshape: {data.size} elements of shape {data.shape} into {shape}: {error}"
        ) from error
    old = data.shape
    return _viewed("reshape", x, out, lambda g: g.reshape(old))


def transpose(x: Tensor | Array, axes: Sequence[int] | None = None) -> Tensor:
    """`x` with its axes in the order of `axes`, or in reverse."""
    x = as_tensor(x, "transpose")
    data = x._data
    if axes is None:
        return _viewed("transpose", x, data.T, lambda g: g.T)
    order = [i % data.ndim if -data.ndim <= i < data.ndim else i for i in axes]
    if sorted(order) != list(range(data.ndim)):
        raise ArgumentError(f"transpose: {tuple(axes)} is no order of {data.ndim} axes")
    inverse = tuple(int(i) for i in np.argsort(order))
    return _viewed("transpose", x, data.transpose(order), lambda g: g.transpose(inverse))


def swapaxes(x: Tensor | Array, first: int, second: int) -> Tensor:
    """`x` with two axes exchanged."""
    x = as_tensor(x, "swapaxes")
    normal_axes("swapaxes", x.ndim, first), normal_axes("swapaxes", x.ndim, second)
    return _viewed("swapaxes", x, x._data.swapaxes(first, second), lambda g: g.swapaxes(first, second))


def flatten(x: Tensor | Array, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """`x` with the axes from `start_axis` to `end_axis`, both included, made one."""
    x = as_tensor(x, "flatten")
    shape = x._data.shape
    if not shape:
        return reshape(x, (1,))
    (start,), (end,) = (
        normal_axes("flatten", len(shape), start_axis),
        normal_axes("flatten", len(shape), end_axis),
    )
    if start > end:
        raise ArgumentError(f"flatten: start_axis {start_axis} comes after end_axis {end_axis}")
    # Not -1: an empty array does not say what it stands for.
    merged = int(np.prod(shape[start : end + 1], dtype=np.int64))
    return reshape(x, (*shape[:start], merged, *shape[end + 1 :]))


def squeeze(x: Tensor | Array, axis: Axis = None) -> Tensor:
    """`x` without the axes of length 1, or without those named."""
    x = as_tensor(x, "squeeze")
    shape = x._data.shape
    if axis is None:
        axes = tuple(i for i, n in enumerate(shape) if n == 1)
    else:
        axes = normal_axes("squeeze", len(shape), axis)
        if any(shape[i] != 1 for i in axes):
            raise ArgumentError(f"squeeze: axis {axis} of shape {shape} is not of length 1")
    return reshape(x, tuple(n for i, n in enumerate(shape) if i not in axes))


def unsqueeze(x: Tensor | Array, axis: int) -> Tensor:
    """`x` with a new axis of length 1 before `axis`."""
    x = as_tensor(x, "unsqueeze")
    (place,) = normal_axes("unsqueeze", x.ndim + 1, axis)
    shape = x._data.shape
    return reshape(x, (*shape[:place], 1, *shape[place:]))


def expand(x: Tensor | Array, shape: Sequence[int]) -> Tensor:
    """`x` repeated along axes of length 1 and along new ones in front, without copying; -1 keeps a length."""
    x = as_tensor(x, "expand")
    data = x._data
    extra = len(shape) - data.ndim
    target = tuple(data.shape[i - extra] if n == -1 and i >= extra else n for i, n in enumerate(shape))
    try:
        out = backend.xp(data).broadcast_to(data, target)
    except ValueError as error:
        raise ArgumentError(f"expand: shape {data.shape} does not broadcast to {tuple(shape)}") from error
    old, dtype = data.shape, data.dtype
    result = (
        record("expand", out, lambda g: (sum_to(g, old, dtype),), (x,)) if recording(x) else constant(out)
    )
    return share_memory(result, x)


def concatenate(tensors: Sequence[Tensor | Array], axis: int = 0) -> Tensor:
    """The tensors one after the other along `axis`."""
    parts = [as_tensor(t, "concatenate") for t in tensors]
    if not parts:
        raise ArgumentError("concatenate: no tensors")
    arrays = [t._data for t in parts]
    (place,) = normal_axes("concatenate", arrays[0].ndim, axis)
    try:
        out = backend.xp(arrays[0]).concatenate(arrays, axis=place)
    except ValueError as error:
        shapes = [a.shape for a in arrays]
        raise ArgumentError(f"concatenate: shapes {shapes} differ outside axis {axis}: {error}") from error
    if not recording(*parts):
        return constant(out)
    ends = np.cumsum([a.shape[place] for a in arrays]).tolist()
    kinds = [a.dtype if t._requires_grad else None for t, a in zip(parts, arrays)]
    before = (slice(None),) * place

    def rule(gradient: Array) -> Sequence[Array | None]:
        starts = [0, *ends[:-1]]
        return [
            None if kind is None else gradient[(*before, slice(i, j))].astype(kind, copy=False)
            for i, j, kind in zip(starts, ends, kinds)
        ]

    return record("concatenate", out, rule, tuple(parts))


def stack(tensors: Sequence[Tensor | Array], axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    parts = [as_tensor(t, "stack") for t in tensors]
    if not parts or any(t.shape != parts[0].shape for t in parts):
        raise ArgumentError(f"stack: one or more tensors of one shape, got {[t.shape for t in parts]}")
    return concatenate([unsqueeze(t, axis) for t in parts], axis)


def detach(x: Tensor) -> Tensor:
    """A constant over the memory of `x`."""
    return share_memory(constant(x._data), x)
