"""Seeded initial values; names, arguments and distributions of torch.nn.init.

Functions that end in `_` write into their argument, a Tensor or an array, and return it. They draw from the
process's generator, which `manual_seed` sets, or from `rng`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from psframework.autograd import Tensor, no_grad
from psframework.autograd.ops.inplace import assign
from psframework.backend import Array, array_like
from psframework.errors import ArgumentError
from psframework.nn import making
from psframework.nn.random import generator, manual_seed

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "fans",
    "generator",
    "kaiming_normal_",
    "kaiming_uniform_",
    "manual_seed",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

T = TypeVar("T", Tensor, Array)

_FIXED_GAINS = {
    "linear": 1.0,
    **{f"{kind}{axes}d": 1.0 for kind in ("conv", "conv_transpose") for axes in (1, 2, 3)},
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """What a layer before this nonlinearity is scaled by to keep its variance (torch's table).

    Args:
        nonlinearity: "linear", "conv2d" and the like, "sigmoid", "tanh", "relu", "selu" or "leaky_relu".
        param: negative slope of leaky_relu; 0.01 if None.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _FIXED_GAINS:
        known = ", ".join([*_FIXED_GAINS, "leaky_relu"])
        raise ArgumentError(f"unknown nonlinearity {nonlinearity!r}; known: {known}")
    return _FIXED_GAINS[nonlinearity]


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs of one unit of a weight of this shape, (out, in, *kernel)."""
    if len(shape) < 2:
        raise ArgumentError(
            f"fan in and out need a weight of at least 2 dimensions, not of shape {tuple(shape)}"
        )
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def _fan(shape: Sequence[int], mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f'mode must be "fan_in" or "fan_out", not {mode!r}')
    return fans(shape)[mode == "fan_out"]


def _write(target: T, values: Array) -> T:
    if isinstance(target, Tensor):
        with no_grad():
            assign(target, ..., array_like(values, target.data))
    else:
        target[...] = array_like(values, target)
    return target


def _draw_dtype(target: Tensor | Array) -> type[np.float32] | type[np.float64]:
    return np.float64 if target.dtype == np.float64 else np.float32


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0, *, rng: np.random.Generator | None = None) -> T:
    """From the uniform distribution over [a, b)."""
    if making.is_bounded():
        return tensor
    values = (rng or generator()).random(tensor.shape, _draw_dtype(tensor))
    values *= b - a
    values += a
    return _write(tensor, values)


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, *, rng: np.random.Generator | None = None) -> T:
    """From the normal distribution."""
    if making.is_bounded():
        return tensor
    values = (rng or generator()).standard_normal(tensor.shape, _draw_dtype(tensor))
    values *= std
    values += mean
    return _write(tensor, values)


def constant_(tensor: T, val: float) -> T:
    """One value everywhere."""
    if making.is_bounded():
        return tensor
    return _write(tensor, np.asarray(val, _draw_dtype(tensor)))


def zeros_(tensor: T) -> T:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: T) -> T:
    """Ones."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: T, gain: float = 1.0, *, rng: np.random.Generator | None = None) -> T:
    """Glorot and Bengio (AISTATS 2010), uniform: bound gain * sqrt(6 / (fan_in + fan_out))."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor.shape)))
    return uniform_(tensor, -bound, bound, rng=rng)


def xavier_normal_(tensor: T, gain: float = 1.0, *, rng: np.random.Generator | None = None) -> T:
    """Glorot and Bengio (AISTATS 2010), normal: std gain * sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor.shape))), rng=rng)


def kaiming_uniform_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    rng: np.random.Generator | None = None,
) -> T:
    """He et al. (arXiv:1502.01852), uniform: bound gain * sqrt(3 / fan).

    Args:
        tensor: weight of shape (out, in, *kernel).
        a: negative slope of the leaky_relu that follows.
        mode: "fan_in" keeps the variance forward, "fan_out" backward.
        nonlinearity: as in `calculate_gain`.
        rng: generator to draw from; the process's if None.
    """
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(tensor.shape, mode))
    return uniform_(tensor, -bound, bound, rng=rng)


def kaiming_normal_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    rng: np.random.Generator | None = None,
) -> T:
    """He et al. (arXiv:1502.01852), normal: std gain / sqrt(fan); arguments as `kaiming_uniform_`."""
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor.shape, mode))
    return normal_(tensor, 0.0, std, rng=rng)


def trunc_normal_(
    tensor: T,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    rng: np.random.Generator | None = None,
) -> T:
    """From the normal distribution, of which only values in [a, b] are taken.

    Args:
        tensor: any shape.
        mean: of the whole distribution.
        std: of the whole distribution, above 0.
        a: smallest value.
        b: largest value, above `a`.
        rng: generator to draw from; the process's if None.
    """
    if not a < b or not std > 0:
        raise ArgumentError(f"trunc_normal_ needs a < b and std > 0, not a={a}, b={b}, std={std}")
    draw, low, high = rng or generator(), (a - mean) / std, (b - mean) / std
    share = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    count = math.prod(tensor.shape)
    taken = np.empty(0)
    while len(taken) < count:
        wanted = count - len(taken)
        if share > 0.1:
            drawn = draw.standard_normal(int(wanted / share * 1.1) + 8)
            drawn = drawn[(drawn >= low) & (drawn <= high)]
        else:  # a narrow interval, or one in the tail: uniform numbers, taken in proportion to the density
            drawn = draw.uniform(low, high, 4 * wanted + 8)
            peak = min(max(low, 0.0), high)
            drawn = drawn[draw.random(len(drawn)) < np.exp((peak**2 - drawn**2) / 2)]
        taken = np.concatenate([taken, drawn[:wanted]])
    return _write(tensor, np.clip(taken.reshape(tensor.shape) * std + mean, a, b))


def orthogonal_(tensor: T, gain: float = 1.0, *, rng: np.random.Generator | None = None) -> T:
    """Orthonormal rows, or columns if there are more rows than columns (Saxe et al., arXiv:1312.6120).

    Args:
        tensor: of at least 2 dimensions; those after the first count as columns.
        gain: factor.
        rng: generator to draw from; the process's if None.
    """
    if len(tensor.shape) < 2:
        raise ArgumentError(f"orthogonal_ needs at least 2 dimensions, not shape {tuple(tensor.shape)}")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    drawn = (rng or generator()).standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diagonal(r))  # makes it uniform among all such matrices
    return _write(tensor, gain * (q.T if rows < columns else q).reshape(tensor.shape))


def eye_(tensor: T) -> T:
    """The identity matrix: ones on the diagonal of 2 dimensions."""
    if len(tensor.shape) != 2:
        raise ArgumentError(f"eye_ needs 2 dimensions, not shape {tuple(tensor.shape)}")
    return _write(tensor, np.eye(*tensor.shape))


def dirac_(tensor: T, groups: int = 1) -> T:
    """A convolution that passes its input on, as far as there are output channels for it.

    Args:
        tensor: weight of shape (out, in / groups, *kernel), of 3 to 5 dimensions.
        groups: of the convolution; each passes its own channels on.
    """
    shape = tuple(tensor.shape)
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise ArgumentError(
            f"dirac_ needs 3 to 5 dimensions, the first a multiple of groups={groups}, not shape {shape}"
        )
    values, each = np.zeros(shape), shape[0] // groups
    centre: tuple[int, ...] = tuple(n // 2 for n in shape[2:])
    for group in range(groups):
        for channel in range(min(each, shape[1])):
            values[(group * each + channel, channel, *centre)] = 1
    return _write(tensor, values)


def sparse_(tensor: T, sparsity: float, std: float = 0.01, *, rng: np.random.Generator | None = None) -> T:
    """Normal values, of which in each column the share `sparsity` is 0 (Martens, ICML 2010)."""
    if len(tensor.shape) != 2 or not 0 <= sparsity <= 1:
        raise ArgumentError(
            f"sparse_ needs 2 dimensions and a sparsity in [0, 1], not {tuple(tensor.shape)} and {sparsity}"
        )
    draw, (rows, columns) = rng or generator(), tensor.shape
    values = draw.standard_normal((rows, columns)) * std
    for column in range(columns):
        values[draw.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0
    return _write(tensor, values)
