"""More operations of random programs: indexing, products, convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from random_program_ops import OPS, add, apart, line, pair
from random_programs import Draw, require

import psframework.nn.functional as F
from psframework import ops

Array = np.ndarray


def _torch_key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_torch_key(item) for item in key)
    return torch.tensor(key) if isinstance(key, np.ndarray) else key


def picked(d: Draw) -> Any:
    """An index of slices, integers, arrays (which may name a place twice), None and Ellipsis."""
    place = d.place(lambda v: v.ndim > 0)
    shape, key = d.values[place].shape, []
    # Where integers stand beside arrays NumPy counts them as arrays, and torch does not.
    arrays, rows = d.integer(0, 1), d.integer(1, 4)
    for n in shape[: d.integer(1, len(shape))]:
        if d.integer(0, 2) == 0:
            key.append(slice(d.integer(0, n - 1), d.one([None, n]), d.one([None, 2])))
        elif arrays:
            key.append(d.rng.integers(-n, n, d.one([(rows,), (2, 1), (2, rows)])))
        else:
            key.append(d.integer(-n, n - 1))
        if d.integer(0, 5) == 0:
            key.append(None)
    if d.integer(0, 3) == 0:
        key.append(Ellipsis)
    return (place,), (tuple(key),)


def by_mask(d: Draw) -> Any:
    place = d.place(lambda v: v.ndim > 0)
    shape = d.values[place].shape
    return (place,), (d.rng.random(shape[: d.integer(1, len(shape))]) < 0.6,)


def by_rows(d: Draw) -> Any:
    place, axis = line(d)
    n = d.values[place].shape[axis]
    return (place,), (axis, d.rng.integers(0, n, d.integer(1, 4)))


def gathered(d: Draw) -> Any:
    place, axis = line(d)
    shape = d.values[place].shape
    lengths = [d.integer(1, n) for n in shape]
    return (place,), (axis, d.rng.integers(0, shape[axis], lengths))


def scattered(d: Draw) -> Any:
    """Two values of one shape, and distinct places in each line."""
    first = d.place(lambda v: v.ndim > 0)
    shape = d.values[first].shape
    second = d.place(lambda b: b.shape == shape)
    axis = d.integer(-len(shape), len(shape) - 1)
    return (first, second), (axis, d.rng.random(shape).argsort(axis))


def added(d: Draw) -> Any:
    operands, (axis, _) = scattered(d)
    shape = d.values[operands[0]].shape
    return operands, (axis, d.rng.integers(0, shape[axis], shape))


def added_rows(d: Draw) -> Any:
    operands, (axis, _) = scattered(d)
    n = d.values[operands[0]].shape[axis]
    return operands, (axis, d.rng.integers(0, n, n))


def placed(d: Draw) -> Any:
    """A value in place of part of another one."""
    place = d.place(lambda v: v.ndim > 0 and v.shape[0] > 1)
    value = d.values[place]
    other = d.place(lambda b: b.shape == value.shape[1:])
    return (place, other), (d.one([d.integer(0, len(value) - 1), slice(1, None), np.arange(len(value) - 1)]),)


def put(module: Any) -> Any:
    def op(x: Any, value: Any, key: Any) -> Any:
        h = x * 1
        h[_torch_key(key) if module is torch else key] = value
        return h

    return op


add("index", picked, lambda x, key: x[_torch_key(key)], lambda x, key: x[key])
add("index", by_mask, lambda x, mask: x[torch.tensor(mask)], lambda x, mask: x[mask])
add("index_select", by_rows, lambda x, axis, i: x.index_select(axis, torch.tensor(i)))
add("gather", gathered, lambda x, axis, i: x.gather(axis, torch.tensor(i)))
add(
    "scatter",
    scattered,
    lambda x, s, axis, i: x.scatter(axis, torch.tensor(i), s),
    lambda x, s, a, i: ops.scatter(x, a, i, s),
)
add(
    "scatter_add",
    added,
    lambda x, s, axis, i: x.scatter_add(axis, torch.tensor(i), s),
    lambda x, s, axis, i: ops.scatter_add(x, axis, i, s),
)
add(
    "index_add",
    added_rows,
    lambda x, s, axis, i: x.index_add(axis, torch.tensor(i), s),
    lambda x, s, axis, i: ops.index_add(x, axis, i, s),
)
add("assign", placed, put(torch), put(ops))


# ---- products


def matrices(d: Draw) -> Any:
    first = d.place(lambda v: v.ndim > 0)
    a = d.values[first]

    def fits(b: Array) -> bool:
        if not b.ndim or b.shape[-2 if b.ndim > 1 else 0] != a.shape[-1]:
            return False
        batches = zip(a.shape[-3::-1], b.shape[-3::-1])
        return all(n == m or 1 in (n, m) for n, m in batches)

    return (first, d.place(fits)), ()


def with_itself(d: Draw) -> Any:
    place = d.place(lambda v: v.ndim > 1)
    return (place, place), ()


def last_axes(d: Draw) -> Any:
    first = d.place(lambda v: v.ndim > 0)
    n = d.values[first].shape[-1]
    return (first, d.place(lambda b: b.ndim == 2 and b.shape[1] == n)), ()


def labelled(d: Draw) -> Any:
    """Labels at random: axes of one length may share a label, of which the result may have any."""
    operands = tuple(d.place(lambda v: 0 < v.ndim < 4) for _ in range(d.integer(1, 3)))
    sizes: dict[str, int] = {}
    terms = []
    for place in operands:
        term = ""
        for n in d.values[place].shape:
            same = [letter for letter, size in sizes.items() if size == n]
            letter = d.one(same) if same and d.integer(0, 3) else "abcdefghi"[len(sizes)]
            sizes.setdefault(letter, n)
            term += letter
        terms.append(term)
    kept = [str(letter) for letter in d.rng.permutation(list(sizes)) if d.integer(0, 2)]
    require(np.prod([sizes[letter] for letter in kept]) <= 96)
    return operands, (f"{','.join(terms)}->{''.join(kept)}",)


add("matmul", matrices, torch.matmul)
add("gram", with_itself, lambda x, y: x @ y.mT, lambda x, y: x @ y.swapaxes(-1, -2))
add("linear", last_axes, TF.linear)
add("outer", pair, lambda a, b: torch.outer(a.ravel(), b.ravel()))
add("inner", last_axes, torch.inner)
for _ in range(3):
    add(
        "einsum",
        labelled,
        lambda *xs: torch.einsum(xs[-1], *xs[:-1]),
        lambda *xs: ops.einsum(xs[-1], *xs[:-1]),
    )


# ---- images: the last two axes of a value; the kernel is the fourth leaf, (2, 1, 2, 2)


def image(d: Draw) -> int:
    return d.place(lambda v: v.ndim > 1 and min(v.shape[-2:]) >= 2)


def convolution(d: Draw) -> Any:
    return (image(d), 3), (d.integer(1, 2), d.integer(0, 1))


def windows(d: Draw) -> Any:
    place = image(d)
    require(apart(d.values[place].reshape(-1)))
    return (place,), (2, d.integer(1, 2))


def varied(d: Draw) -> Any:
    return (d.place(lambda v: v.ndim > 1 and min(v.shape[-2:]) >= 2 and v.std() > 0.2),), ()


def on_images(name: str, choose: Any, *before: Any, kernel: Any = lambda w: w, axes: int = 2) -> None:
    """Add torch's and our function of that name, on the last axes of a value."""

    def call(function: Any) -> Any:
        def op(x: Any, *rest: Any) -> Any:
            x = x.reshape((-1, 1, *x.shape[-axes:]))
            if len(rest) == 3:
                return function(x, kernel(rest[0]), None, *rest[1:])
            return function(x, *before, *rest)

        return op

    add(name, choose, call(getattr(TF, name)), call(getattr(F, name)))


on_images("conv2d", convolution)
on_images("conv1d", convolution, kernel=lambda w: w.reshape((4, 1, 2)), axes=1)
on_images("conv_transpose2d", convolution, kernel=lambda w: w.swapaxes(0, 1))
on_images("max_pool2d", windows)
on_images("avg_pool2d", windows)
on_images("adaptive_avg_pool2d", lambda d: ((image(d),), ((1, 2),)))
on_images("batch_norm", varied, None, None, None, None, True)

__all__ = ["OPS"]
