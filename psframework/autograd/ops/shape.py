"""Another shape over the same elements: reshape, transpose, expand; views wherever memory allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops.reduce import normal_axes, normal_axis
from psframework.autograd.record import as_tensor, constant, record, recording, share_memory, sum_to
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def is_view(out: Array, data: Array) -> bool:
    """Whether `out`, made from `data`, shares its memory."""
    return out.base is not None and (out.base is data or out.base is data.base)


def viewed(name: str, x: Tensor, out: Array, undo: Callable[[Array], Array]) -> Tensor:
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
    return viewed("reshape", x, out, lambda g: g.reshape(old))


def transpose(x: Tensor | Array, axes: Sequence[int] | None = None) -> Tensor:
    """`x` with its axes in the order of `axes`, or in reverse."""
    x = as_tensor(x, "transpose")
    data = x._data
    if axes is None:
        return viewed("transpose", x, data.T, lambda g: g.T)
    order = [i % data.ndim if -data.ndim <= i < data.ndim else i for i in axes]
    if sorted(order) != list(range(data.ndim)):
        raise ArgumentError(f"transpose: {tuple(axes)} is no order of {data.ndim} axes")
    inverse = tuple(int(i) for i in np.argsort(order))
    return viewed("transpose", x, data.transpose(order), lambda g: g.transpose(inverse))


def swapaxes(x: Tensor | Array, first: int, second: int) -> Tensor:
    """`x` with two axes exchanged."""
    x = as_tensor(x, "swapaxes")
    i, j = normal_axis("swapaxes", x.ndim, first), normal_axis("swapaxes", x.ndim, second)
    return viewed("swapaxes", x, x._data.swapaxes(i, j), lambda g: g.swapaxes(i, j))


def flatten(x: Tensor | Array, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """`x` with the axes from `start_axis` to `end_axis`, both included, made one."""
    x = as_tensor(x, "flatten")
    shape = x._data.shape
    if not shape:
        return reshape(x, (1,))
    start, end = (normal_axis("flatten", len(shape), axis) for axis in (start_axis, end_axis))
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
    place = normal_axis("unsqueeze", x.ndim + 1, axis)
    shape = x._data.shape
    return reshape(x, (*shape[:place], 1, *shape[place:]))


def expand(x: Tensor | Array, shape: Sequence[int]) -> Tensor:
    """`x` repeated along axes of length 1 and along new ones in front, without copying; -1 keeps a length."""
    return _expand("expand", x, shape)


def _expand(name: str, x: Tensor | Array, shape: Sequence[int]) -> Tensor:
    x = as_tensor(x, name)
    data = x._data
    extra = len(shape) - data.ndim
    target = tuple(data.shape[i - extra] if n == -1 and i >= extra else n for i, n in enumerate(shape))
    try:
        out = backend.xp(data).broadcast_to(data, target)
    except ValueError as error:
        raise ArgumentError(f"{name}: shape {data.shape} does not broadcast to {tuple(shape)}") from error
    old, dtype = data.shape, data.dtype
    result = record(name, out, lambda g: (sum_to(g, old, dtype),), (x,)) if recording(x) else constant(out)
    return share_memory(result, x)


def broadcast_to(x: Tensor | Array, shape: int | Sequence[int]) -> Tensor:
    """`x` repeated, without copying, to a shape that it broadcasts to."""
    target = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(n < 0 for n in target):
        raise ArgumentError(f"broadcast_to: a negative length in {target}")
    return _expand("broadcast_to", x, target)


def expand_dims(x: Tensor | Array, axis: int | Sequence[int]) -> Tensor:
    """`x` with new axes of length 1 that are, in the result, the axes named."""
    x = as_tensor(x, "expand_dims")
    ndim = x.ndim + (len(axis) if isinstance(axis, Sequence) else 1)
    places = axis_list("expand_dims", ndim, axis)
    lengths = iter(x._data.shape)
    return reshape(x, tuple(1 if i in places else next(lengths) for i in range(ndim)))


def ravel(x: Tensor | Array) -> Tensor:
    """`x` as one axis: a view where the memory allows it."""
    return reshape(x, -1)


def along(name: str, x: Tensor | Array, axis: int | None) -> tuple[Tensor, int]:
    """`x`, flattened where `axis` is None, and the axis as a number from 0."""
    x = as_tensor(x, name)
    return (ravel(x), 0) if axis is None else (x, normal_axis(name, x.ndim, axis))


def moveaxis(x: Tensor | Array, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """`x` with the axes `source` moved to the places `destination`, the others in their order."""
    x = as_tensor(x, "moveaxis")
    old, new = axis_list("moveaxis", x.ndim, source), axis_list("moveaxis", x.ndim, destination)
    if len(old) != len(new):
        raise ArgumentError(f"moveaxis: {len(old)} axes to {len(new)} places")
    order = [i for i in range(x.ndim) if i not in old]
    for place, axis in sorted(zip(new, old)):
        order.insert(place, axis)
    return transpose(x, order)


def axis_list(name: str, ndim: int, axes: int | Sequence[int]) -> list[int]:
    """The axes as numbers from 0, in the order given."""
    given = tuple(axes) if isinstance(axes, Sequence) else (axes,)
    normal_axes(name, ndim, given)
    return [int(i) % ndim for i in given]


def atleast_1d(x: Tensor | Array) -> Tensor:
    """`x`, a number as a vector of one."""
    x = as_tensor(x, "atleast_1d")
    return x if x.ndim else reshape(x, (1,))


def atleast_2d(x: Tensor | Array) -> Tensor:
    """`x`, a vector as one row."""
    x = as_tensor(x, "atleast_2d")
    return x if x.ndim > 1 else reshape(x, (1, x.size))


def atleast_3d(x: Tensor | Array) -> Tensor:
    """`x`, a vector as (1, n, 1), a matrix as (m, n, 1)."""
    x = as_tensor(x, "atleast_3d")
    if x.ndim > 2:
        return x
    return reshape(x, (*x.shape, 1) if x.ndim == 2 else (1, x.size, 1))


def detach(x: Tensor) -> Tensor:
    """A constant over the memory of `x`."""
    result = constant(x._data)
    result._version = (
        x._version
    )  # and no `share_memory`: no gradient goes through it, so `x` may still change
    return result
