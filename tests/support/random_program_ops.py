"""The operations of random programs: torch's counterpart of each, and which values suit it.

Both sides are called with the operands, and then the options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from random_programs import Draw, Op, require

from psframework import ops

Array = np.ndarray
MARGIN = 2e-3  # distance from kinks, and between numbers whose order counts
SCALE = Op("scale", lambda d: ((), ()), lambda x, factor: x * factor, lambda x, factor: x * factor)
OPS: list[Op] = []


def add(name: str, choose: Callable[[Draw], Any], theirs: Callable[..., Any], ours: Any = None) -> None:
    OPS.append(Op(name, choose, ours or getattr(ops, name), theirs))


def apart(value: Array, axis: int = -1) -> bool:
    """Whether no two numbers of a line along `axis` are nearly equal."""
    return bool((np.diff(np.sort(value, axis), axis=axis) > MARGIN).all())


def far(value: Array, distance: float = MARGIN) -> bool:
    """Whether every number is away from 0."""
    return bool((np.abs(value) > distance).all())


def spread(value: Array, axis: int = -1) -> bool:
    """Whether the numbers of each line along `axis` differ."""
    return bool((value.std(axis) > 0.2).all())


# ---- elementwise


def unary(name: str, theirs: Any = None, suits: Callable[[Array], bool] = lambda v: True) -> None:
    add(name, lambda d: ((d.place(suits),), ()), theirs or getattr(torch, name))


SMOOTH = "sin cos tanh sigmoid square arctan erf negative arcsinh expm1 exp sinh"
for name in SMOOTH.split():
    unary(name)
unary("gelu", TF.gelu)
unary("relu", torch.relu, far)
unary("absolute", torch.abs, far)
unary("sqrt", None, lambda v: v.min() > 0.2)
unary("log", None, lambda v: v.min() > 0.2)
unary("log1p", None, lambda v: v.min() > -0.6)
unary("reciprocal", None, lambda v: far(v, 0.3))
unary("arctanh", None, lambda v: np.abs(v).max() < 0.8)
unary("cbrt", lambda x: x.abs().pow(1 / 3) * x.sign(), lambda v: far(v, 0.2))


def pair(d: Draw, suits: Callable[[Array, Array], bool] = lambda a, b: True) -> Any:
    """Two values that broadcast."""
    first = d.place()
    a = d.values[first]

    def fits(b: Array) -> bool:
        lengths = zip(a.shape[::-1], b.shape[::-1])
        return all(n == m or 1 in (n, m) for n, m in lengths) and suits(a, b)

    return (first, d.place(fits)), ()


add("add", pair, torch.add)
add("subtract", pair, torch.sub)
add("multiply", pair, torch.mul)
add("divide", lambda d: pair(d, lambda a, b: far(b, 0.4)), torch.div)
add("maximum", lambda d: pair(d, lambda a, b: far(a - b)), torch.maximum)
add("minimum", lambda d: pair(d, lambda a, b: far(a - b)), torch.minimum)
add("logaddexp", pair, torch.logaddexp)
add("hypot", lambda d: pair(d, lambda a, b: far(np.hypot(a, b), 0.2)), torch.hypot)
add("arctan2", lambda d: pair(d, lambda a, b: far(b, 0.2)), torch.arctan2)
add("power", lambda d: pair(d, lambda a, b: a.min() > 0.2), torch.pow)


def chosen(d: Draw) -> Any:
    operands, _ = pair(d)
    shape = np.broadcast_shapes(*(d.values[i].shape for i in operands))
    return operands, (d.rng.random(shape) < 0.5,)


def masked(d: Draw) -> Any:
    place = d.place()
    shape = d.values[place].shape
    return (place,), (d.rng.random(shape[d.integer(0, len(shape)) :]) < 0.4, 0.5)


def clipped(d: Draw) -> Any:
    return (d.place(lambda v: far(v - 0.8) and far(v + 0.7)),), (-0.7, 0.8)


add("where", chosen, lambda a, b, m: torch.where(torch.tensor(m), a, b), lambda a, b, m: ops.where(m, a, b))
add("masked_fill", masked, lambda x, mask, value: x.masked_fill(torch.tensor(mask), value))
add("clip", clipped, torch.clamp)


# ---- along an axis


def line(d: Draw, suits: Callable[[Array, int], bool] = lambda v, axis: True) -> tuple[int, int]:
    """A value and an axis of it."""
    place = d.place(lambda v: v.ndim > 0)
    axis = d.axis(d.values[place])
    require(suits(d.values[place], axis))
    return place, axis


def reduction(name: str, theirs: Any, suits: Callable[[Array, int], bool] = lambda v, axis: True) -> None:
    def choose(d: Draw) -> Any:
        place, axis = line(d, suits)
        return (place,), (axis, bool(d.integer(0, 1)))

    add(name, choose, theirs)


reduction("sum", torch.sum)
reduction("mean", torch.mean)
reduction("amax", torch.amax, apart)
reduction("amin", torch.amin, apart)
reduction("logsumexp", torch.logsumexp)
reduction("prod", torch.prod, lambda v, axis: far(v, 0.1))
reduction("var", lambda x, axis, kept: torch.var(x, axis, correction=0, keepdim=kept))
reduction("std", lambda x, axis, kept: torch.std(x, axis, correction=0, keepdim=kept), spread)
add(
    "norm",
    lambda d: ((d.place(lambda v: v.ndim > 0 and spread(v)),), ()),
    lambda x: torch.linalg.vector_norm(x, dim=-1),
    lambda x: ops.norm(x, axis=-1),
)


def along(
    name: str, theirs: Any, suits: Callable[[Array, int], bool] = lambda v, axis: True, ours: Any = None
) -> None:
    def choose(d: Draw) -> Any:
        place, axis = line(d, suits)
        return (place,), (axis,)

    add(name, choose, theirs, ours)


along("softmax", torch.softmax)
along("log_softmax", torch.log_softmax)
along("cumsum", torch.cumsum)
along("cumprod", torch.cumprod, lambda v, axis: far(v, 0.1))
along("sort", lambda x, axis: torch.sort(x, axis).values, apart)
along(
    "diff",
    lambda x, axis: x.diff(dim=axis),
    lambda v, axis: v.shape[axis] > 1,
    lambda x, i: ops.diff(x, axis=i),
)
along("flip", lambda x, axis: torch.flip(x, (axis,)))
along("unbind", lambda x, axis: x.unbind(axis)[-1], ours=lambda x, axis: ops.unbind(x, axis)[-1])


def top(d: Draw) -> Any:
    place, axis = line(d, apart)
    return (place,), (d.integer(1, d.values[place].shape[axis]), axis)


def normalised(d: Draw, *options: Any) -> Any:
    place = d.place(lambda v: v.ndim > 0 and spread(v))
    return (place,), (d.values[place].shape[-1:], *options, 1e-5)


add("topk", top, lambda x, k, axis: x.topk(k, axis).values, lambda x, k, axis: ops.topk(x, k, axis)[0])
add("layer_norm", lambda d: normalised(d, None, None), TF.layer_norm)
add("rms_norm", lambda d: normalised(d, None), TF.rms_norm)


# ---- shapes


def reshaped(d: Draw) -> Any:
    place = d.place()
    size, shape = d.values[place].size, [1]
    while size > 1:
        shape.append(d.one([k for k in range(2, size + 1) if size % k == 0]))
        size //= shape[-1]
    return (place,), (tuple(int(n) for n in d.rng.permutation(shape)),)


def ordered(d: Draw) -> Any:
    place = d.place()
    return (place,), (tuple(int(i) for i in d.rng.permutation(d.values[place].ndim)),)


def two_axes(d: Draw) -> Any:
    place = d.place(lambda v: v.ndim > 1)
    return (place,), tuple(int(i) for i in d.rng.permutation(d.values[place].ndim)[:2])


def widened(d: Draw) -> Any:
    place = d.place(lambda v: 1 in v.shape or v.ndim < 3)
    shape = d.values[place].shape
    return (place,), ((d.integer(1, 3), *(d.integer(2, 3) if n == 1 else n for n in shape)),)


def repeated(d: Draw) -> Any:
    place, axis = line(d)
    return (place,), (d.one([2, d.rng.integers(0, 3, d.values[place].shape[axis])]), axis)


def shifted(d: Draw) -> Any:
    place, axis = line(d)
    return (place,), (d.integer(-3, 3), axis)


def triangle(d: Draw) -> Any:
    return (d.place(lambda v: v.ndim > 1),), (d.integer(-2, 2),)


def bordered(d: Draw) -> Any:
    place = d.place()
    return (place,), ([(d.integer(0, 2), d.integer(0, 1)) for _ in d.values[place].shape], "constant", 0.5)


def mirrored(d: Draw) -> Any:
    place = d.place(lambda v: v.ndim > 0 and v.shape[-1] > 2)
    widths = [(0, 0)] * (d.values[place].ndim - 1) + [(d.integer(0, 2), d.integer(0, 2))]
    return (place,), (widths, d.one(["reflect", "replicate", "circular"]))


def torch_pad(x: Any, widths: list[tuple[int, int]], mode: str, *value: float) -> Any:
    if mode == "constant":
        return TF.pad(x, [n for each in widths[::-1] for n in each], mode, *value)
    rows = x.reshape(1, -1, x.shape[-1])  # torch takes few axes in the other modes
    return TF.pad(rows, widths[-1], mode).reshape(*x.shape[:-1], -1)


add("reshape", reshaped, torch.reshape)
add("transpose", ordered, torch.permute)
add("ravel", lambda d: ((d.place(),), ()), torch.ravel)
add("squeeze", lambda d: ((d.place(lambda v: 1 in v.shape),), ()), torch.squeeze)
add("broadcast_to", widened, torch.broadcast_to)
add("repeat", repeated, lambda x, n, axis: x.repeat_interleave(torch.as_tensor(n), axis))
add("tile", lambda d: ((d.place(),), ((2, 1),)), torch.tile)
add("roll", shifted, torch.roll)
add("tril", triangle, torch.tril)
add("triu", triangle, torch.triu)
add("swapaxes", two_axes, torch.swapaxes)
add("moveaxis", two_axes, torch.moveaxis)
add("rot90", two_axes, lambda x, i, j: torch.rot90(x, 1, (i, j)), lambda x, i, j: ops.rot90(x, 1, (i, j)))
add("diagonal", two_axes, lambda x, i, j: x.diagonal(1, i, j), lambda x, i, j: ops.diagonal(x, 1, i, j))
add("pad", bordered, torch_pad)
add("pad", mirrored, torch_pad)


def joined(d: Draw) -> Any:
    first = d.place(lambda v: v.ndim > 0)
    a = d.values[first]
    axis = d.axis(a) % a.ndim
    rest = np.delete(a.shape, axis).tolist()
    second = d.place(lambda b: b.ndim == a.ndim and np.delete(b.shape, axis).tolist() == rest)
    return (first, second, first), (axis,)


def stacked(d: Draw) -> Any:
    first = d.place()
    second = d.place(lambda b: b.shape == d.values[first].shape)
    return (first, second), (d.integer(-1, d.values[first].ndim),)


def cut(d: Draw) -> Any:
    place, axis = line(d)
    return (place,), (d.integer(0, d.values[place].shape[axis]), axis)


add(
    "concatenate",
    joined,
    lambda a, b, c, i: torch.cat((a, b, c), i),
    lambda a, b, c, i: ops.concatenate((a, b, c), i),
)
add("stack", stacked, lambda a, b, i: torch.stack((a, b), i), lambda a, b, i: ops.stack((a, b), i))
add("split", cut, lambda x, n, i: torch.tensor_split(x, (n,), i)[1], lambda x, n, i: ops.split(x, [n], i)[1])
add("chunk", cut, lambda x, n, i: torch.chunk(x, n + 1, i)[0], lambda x, n, i: ops.chunk(x, n + 1, i)[0])
