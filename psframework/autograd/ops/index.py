"""Indexing in all of NumPy's forms, and its opposite: adding into indexed places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from psframework import backend
from psframework.autograd.node import Rule
from psframework.autograd.ops.shape import is_view
from psframework.autograd.record import (
    as_tensor,
    constant,
    explain,
    record,
    recording,
    share_memory,
    sum_to,
)
from psframework.autograd.tensor import Tensor
from psframework.backend import Array


def index(x: Tensor | Array, key: Any, name: str = "index") -> Tensor:
    """`x[key]`, of which slices and integers give views, arrays give copies.

    Where an element is picked more than once its gradients are added.

    Args:
        x: any shape.
        key: what NumPy takes: integers, slices, None, Ellipsis, and arrays, tensors or lists of integers or
            booleans, alone or in a tuple.
        name: of the operation that picks.

    Raises:
        ArgumentError: an index out of range, or of a kind that arrays do not take.
    """
    x = as_tensor(x, name)
    data = x._data
    try:
        plain = plain_key(key, data)
        out = backend.as_array(data[plain])
    except (IndexError, TypeError, ValueError) as error:
        raise explain(f"{name} {words(key)}", error, x, key) from error
    if recording(x):
        shape = data.shape
        result = record(name, out, lambda g: (placed(shape, plain, g),), (x,), tensors_in(key))
    else:
        result = constant(out)
    return share_memory(result, x) if is_view(out, data) else result


def words(key: Any) -> str:
    """An index as a message shows it: arrays by their shape."""
    if isinstance(key, tuple):
        return f"({', '.join(words(item) for item in key)})"
    shape = getattr(key, "shape", None)
    return repr(key) if not shape else f"{type(key).__name__} of shape {tuple(shape)}"


def _items(key: Any) -> Iterator[Any]:
    yield from key if isinstance(key, tuple) else (key,)


def plain_key(key: Any, data: Array) -> Any:
    """An index for `data`: tensors in it replaced by their arrays, lists by arrays."""
    if isinstance(key, Tensor):
        return key._data
    if isinstance(key, tuple):
        return tuple([plain_key(item, data) for item in key])
    if isinstance(key, list):
        host = np.array(key) if key else np.zeros(0, np.int64)  # an empty list would be of floats
        return host if isinstance(data, np.ndarray) else backend.array_like(host.tolist(), data, host.dtype)
    return key


def tensors_in(key: Any) -> tuple[Tensor, ...]:
    """The tensors in an index: whoever keeps their arrays must notice a change in place."""
    return tuple([item for item in _items(key) if isinstance(item, Tensor)])


def is_basic(key: Any) -> bool:
    """Whether `key` has slices, integers, None and Ellipsis only, so that it picks a view."""
    return all(
        item is None
        or item is Ellipsis
        or (isinstance(item, slice | int | np.integer) and not isinstance(item, bool))
        for item in _items(key)
    )


def placed(shape: tuple[int, ...], key: Any, values: Array) -> Array:
    """Zeros of `shape` with `values` added at `key`: the gradient of indexing."""
    into: Array = backend.xp(values).zeros(shape, values.dtype)
    if is_basic(key) or _is_mask(key):
        into[key] = values  # no place is named twice
        return into
    return _summed(into, key, values)


def add_at(into: Array, key: Any, values: Array) -> None:
    """`into[key] += values`, each repeated place once for each repetition, in a fixed order on the CPU.

    Args:
        into: changed in place.
        key: an index without tensors and lists.
        values: of the shape of `into[key]`.
    """
    if is_basic(key) or _is_mask(key):
        into[key] += values
    else:
        into += _summed(backend.xp(into).zeros(into.shape, into.dtype), key, values)


def put_rule(key: Any, target: Tensor, values: object) -> Rule:
    """The derivative of `target[key] = values`: what was there before has none, each value has its own.

    Of a place that is named twice NumPy keeps the last value, and only that one has a gradient.
    """
    target_needs = target._requires_grad
    like = (values.shape, values.dtype) if isinstance(values, Tensor) and values._requires_grad else None

    def rule(gradient: Array) -> Sequence[Array | None]:
        into_target = into_values = None
        if target_needs:
            into_target = gradient.copy()
            into_target[key] = 0
        if like is not None:
            picked = gradient[key]
            if not (is_basic(key) or _is_mask(key)):
                picked = picked * _last(gradient.shape, key, picked)
            longer = (1,) * (len(like[0]) - picked.ndim)
            into_values = sum_to(picked.reshape(longer + picked.shape), *like)
        return into_target, into_values

    return rule


def _last(shape: tuple[int, ...], key: Any, picked: Array) -> Array:
    """Which of the elements picked are not put over by later ones."""
    xp = backend.xp(picked)
    numbers = xp.arange(picked.size).reshape(picked.shape)
    seats = xp.zeros(shape, np.int64)
    seats[key] = numbers
    return backend.as_array(seats[key] == numbers)


def _is_mask(key: Any) -> bool:
    return backend.is_array(key) and key.dtype.kind == "b" and key.ndim > 0


def _summed(zeros: Array, key: Any, values: Array) -> Array:
    """`zeros` with `values` added at `key`, in float32 if they have 16 bits."""
    xp, shape = backend.xp(zeros), zeros.shape
    lead = _leading(key, len(shape))
    rows = _rows(xp, shape[:lead], key).reshape(-1, 1)
    width = int(np.prod(shape[lead:], dtype=np.int64))
    # On flat places: of the ways to add at an index NumPy has made this one fast.
    places = (rows * width + xp.arange(width)).reshape(-1) if width != 1 else rows.reshape(-1)
    total = backend.widen(zeros).reshape(-1)
    xp.add.at(total, places, backend.widen(values).reshape(-1))
    return total.reshape(shape).astype(zeros.dtype, copy=False)


def _leading(key: Any, ndim: int) -> int:
    """How many axes `key` speaks of, from the first on; those after them are taken whole."""
    count = 0
    for item in _items(key):
        if item is Ellipsis:
            return ndim
        if backend.is_array(item) and item.dtype.kind == "b":
            count += item.ndim
        elif item is not None and not isinstance(item, bool | np.bool_):
            count += 1
    return count


def _rows(xp: Any, shape: tuple[int, ...], key: Any) -> Array:
    """What `key` picks of an array of `shape` that holds its own flat places, without making that array."""
    items = list(_items(key))
    if shape and all(backend.is_array(item) and item.dtype.kind == "i" for item in items):
        rows: Any = 0
        for item, n in zip(items, shape):  # arrays alone, the usual case: their own numbers say it
            rows = rows * n + item + n * (item < 0)
        return cast(Array, rows)
    rows = xp.broadcast_to(xp.zeros((), np.int64), shape)[key]
    for axis, n in enumerate(shape):
        along = xp.arange(n).reshape((n,) + (1,) * (len(shape) - 1 - axis))
        rows = rows * n + xp.broadcast_to(along, shape)[key]
    return backend.as_array(rows)
