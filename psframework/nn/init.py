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

T = TypeVar("T", Tensor, Array)

_generator = np.random.default_rng()

_FIXED_GAINS = {
    "linear": 1.0,
    "conv2d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def manual_seed(seed: int) -> None:
    """Seeds the initial values and dropout masks of this process; equal seeds give equal models."""
    # The same object goes on with another state: whoever holds it (`recompute`) must not lose it.
    _generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def generator() -> np.random.Generator:
    """The process's generator, as `manual_seed` left it."""
    return _generator


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """What a layer before this nonlinearity is scaled by to keep its variance (torch's table).

    Args:
        nonlinearity: "linear", "conv2d", "sigmoid", "tanh", "relu", "selu" or "leaky_relu".
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
    values = (rng or _generator).random(tensor.shape, _draw_dtype(tensor))
    values *= b - a
    values += a
    return _write(tensor, values)


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, *, rng: np.random.Generator | None = None) -> T:
    """From the normal distribution."""
    values = (rng or _generator).standard_normal(tensor.shape, _draw_dtype(tensor))
    values *= std
    values += mean
    return _write(tensor, values)


def constant_(tensor: T, val: float) -> T:
    """One value everywhere."""
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
