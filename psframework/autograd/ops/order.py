"""Sorting, the largest and smallest elements, and the median."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psframework import backend
from psframework.autograd.ops.arithmetic import where
from psframework.autograd.ops.index import index
from psframework.autograd.ops.reduce import mean
from psframework.autograd.ops.shape import along, reshape
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


class TopK(NamedTuple):
    """What `topk` answers."""

    values: Tensor
    indices: Tensor


def _order(data: Array, axis: int, descending: bool) -> Array:
    """The indices that sort `data`; equal elements stay in order either way."""
    xp = backend.xp(data)
    if not descending:
        return xp.argsort(data, axis=axis, kind="stable")  # type: ignore[no-any-return]
    backwards = xp.argsort(xp.flip(data, axis), axis=axis, kind="stable")
    return data.shape[axis] - 1 - xp.flip(backwards, axis)  # type: ignore[no-any-return]


def argsort(x: Tensor | Array, axis: int | None = -1, descending: bool = False) -> Tensor:
    """The indices that sort along `axis`, or the flattened array: a constant. Equal ones stay in order."""
    x, place = along("argsort", x, axis)
    return constant(_order(x._data, place, descending))


def sort(x: Tensor | Array, axis: int | None = -1, descending: bool = False) -> Tensor:
    """`x` in order along `axis`, or the flattened array in order; each gradient returns to its element."""
    x, place = along("sort", x, axis)
    data, xp = x._data, backend.xp(x._data)
    if not recording(x):
        out = xp.sort(data, axis=place)
        return constant(xp.flip(out, place) if descending else out)
    order = _order(data, place, descending)

    def rule(gradient: Array) -> Sequence[Array]:
        return (xp.take_along_axis(gradient, xp.argsort(order, axis=place), place),)

    return record("sort", xp.take_along_axis(data, order, place), rule, (x,))


@guarded("topk")
def topk(x: Tensor | Array, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
    """The `k` largest elements along `axis`, as torch has it.

    Args:
        x: any shape with axes.
        k: how many, at most the length of `axis`.
        axis: along which.
        largest: False for the smallest.
        sorted: from the largest (or smallest) on; else in any order.

    Returns:
        The values, through which gradients pass, and their indices along `axis`, of dtype int64. It is not
        defined which of equal elements are chosen.
    """
    x, place = along("topk", x, axis)
    data, xp = x._data, backend.xp(x._data)
    length = data.shape[place]
    if not 0 <= k <= length:
        raise ArgumentError(f"topk: k={k} of an axis of {length} elements")
    before = (slice(None),) * place
    if 0 < k < length:
        chosen = xp.argpartition(data, length - k if largest else k - 1, axis=place)
        chosen = chosen[(*before, slice(length - k, None) if largest else slice(k))]
        if sorted:
            ranks = _order(xp.take_along_axis(data, chosen, place), place, largest)
            chosen = xp.take_along_axis(chosen, ranks, place)
    else:
        chosen = _order(data, place, largest)[(*before, slice(k))]
    out = xp.take_along_axis(data, chosen, place)
    if not recording(x):
        return TopK(constant(out), constant(chosen))
    shape = data.shape

    def rule(gradient: Array) -> Sequence[Array]:
        into = xp.zeros(shape, gradient.dtype)
        key = [
            xp.arange(n).reshape([-1 if i == j else 1 for j in range(len(shape))])
            for i, n in enumerate(shape)
        ]
        key[place] = chosen
        into[tuple(key)] = gradient  # no place is named twice
        return (into,)

    return TopK(record("topk", out, rule, (x,)), constant(chosen))


def median(x: Tensor | Array, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The middle element along `axis`, or of all; the mean of both where their number is even.

    Raises:
        ArgumentError: no elements.
    """
    shape = as_tensor(x, "median").shape
    x, place = along("median", x, axis)
    ordered = sort(x, place)
    length = ordered.shape[place]
    if not length:
        raise ArgumentError(f"median: no elements along axis {axis} of shape {shape}")
    before = (slice(None),) * place
    middle = mean(index(ordered, (*before, slice((length - 1) // 2, length // 2 + 1))), place)
    last = index(ordered, (*before, -1))  # nan is sorted behind everything, and is then the median
    middle = where(last != last, last, middle)
    if not keepdims:
        return middle
    return reshape(middle, [1 if axis is None or i == place else n for i, n in enumerate(shape)])
