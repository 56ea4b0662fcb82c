"""Indexing, and its opposite: adding into indexed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.shape import is_view
from psframework.autograd.record import as_tensor, constant, record, recording, share_memory
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def plain_key(key: Any) -> Any:
    """An index with every tensor in it replaced by its array."""
    if isinstance(key, Tensor):
        return key._data
    return tuple(plain_key(item) for item in key) if isinstance(key, tuple) else key


def index(x: Tensor | Array, key: Any) -> Tensor:
    """`x[key]`: slices, integers, None, Ellipsis, and arrays or tensors of integers or booleans.

    Where an element is picked more than once its gradients are added.

    Raises:
        ArgumentError: an index out of range, or of a kind that arrays do not take.
    """
    x = as_tensor(x, "index")
    data, plain = x._data, plain_key(key)
    try:
        out = backend.as_array(data[plain])
    except (IndexError, TypeError) as error:
        raise _Bad(f"index: {_words(key)} into shape {data.shape}: {error}") from error
    shape, xp = data.shape, backend.xp(data)

    def rule(gradient: Array) -> Sequence[Array]:
        into = xp.zeros(shape, gradient.dtype)
        scatter_add(into, plain, gradient)
        return (into,)

    result = record("index", out, rule, (x,)) if recording(x) else constant(out)
    return share_memory(result, x) if is_view(out, data) else result


class _Bad(ArgumentError, IndexError):
    """An ArgumentError that ends a loop over a sequence, as Python expects of indexing."""


def _words(key: Any) -> str:
    return f"an index of type {type(key).__name__}" if hasattr(key, "shape") else repr(key)


def _is_basic(key: Any) -> bool:
    items = key if isinstance(key, tuple) else (key,)
    return all(
        item is None
        or item is Ellipsis
        or (isinstance(item, slice | int | np.integer) and not isinstance(item, bool))
        for item in items
    )


def scatter_add(into: Array, key: Any, values: Array) -> None:
    """`into[key] += values`, each repeated place once for each repetition.

    Args:
        into: changed in place.
        key: an index without tensors.
        values: of the shape of `into[key]`.
    """
    if _is_basic(key):
        into[key] += values
    elif isinstance(key, np.ndarray) and key.dtype.kind == "b":
        into[key] += values  # no place is named twice
    elif isinstance(key, np.ndarray) and isinstance(into, np.ndarray) and into.ndim > 1 and key.size:
        _add_rows(into, key.reshape(-1) % len(into), values.reshape(key.size, *into.shape[1:]))
    else:
        backend.xp(into).add.at(into, key, values)


def _add_rows(into: Array, rows: Array, values: Array) -> None:
    """Sum equal rows after sorting: many times faster than `add.at`, and in a fixed order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(starts) == len(rows):
        into[rows] += values
    else:
        into[ordered[starts]] += np.add.reduceat(values[order], starts, axis=0)
