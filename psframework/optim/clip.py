"""Gradient clipping by value and by global norm, also where the gradients of a model are in several places.

A norm over all gradients is a sum over parts: each holder of some of them makes a `GlobalNorm`, the parts are
added, and everybody scales what it has by the same coefficient. That is all `clip_grad_norm_` does, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType, is_narrow, widen, xp
from psframework.errors import ArgumentError
from psframework.optim.blocks import block_size, blocks, on_device_of, run_blocks, scratch_for

Gradient: TypeAlias = Array | SparseRows

_EPSILON = 1e-6  # torch's: a norm of 0 asks for no scaling
_ONE_THREAD = 8192  # elements; OpenBLAS shares out dot products of more than 10,000
_FLOAT64: DType = np.dtype(np.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class GlobalNorm:
    """What is known of the norm of many gradients; `a + b` is that of both, in any order.

    Args:
        norm_type: p of the norm, above 0; `math.inf` for the largest magnitude.
        power: the sum of |g|^p over all elements, in double precision (the largest |g| for infinity). It is
            a plain number, to be sent, and added (or, for infinity, compared) where it arrives.
    """

    norm_type: float = 2.0
    power: float = 0.0

    def __post_init__(self) -> None:
        if not self.norm_type > 0:
            raise ArgumentError(f"norm_type must be above 0, not {self.norm_type!r}")

    @classmethod
    def of(cls, gradients: Iterable[Gradient], norm_type: float = 2.0) -> GlobalNorm:
        """The part of these gradients; they may be on several devices, each is reduced where it is."""
        norm_type = float(norm_type)
        nothing = cls(norm_type)  # raises if there is no such norm
        # All devices are at work before the first is waited for.
        powers: list[Any] = []
        for array in _arrays(gradients):
            with on_device_of(array):
                powers += _powers(array, norm_type)
        numbers = [float(power) for power in powers]
        if norm_type != math.inf:
            return cls(norm_type, math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers))
        return sum((cls(norm_type, number) for number in numbers), nothing)

    def __add__(self, other: GlobalNorm) -> GlobalNorm:
        if other.norm_type != self.norm_type:
            raise ArgumentError(f"norms of p={self.norm_type} and p={other.norm_type} do not add")
        if self.norm_type != math.inf:
            return GlobalNorm(self.norm_type, self.power + other.power)
        # `max` would lose a NaN.
        larger = self.power if self.power > other.power or math.isnan(self.power) else other.power
        return GlobalNorm(self.norm_type, larger)

    @property
    def value(self) -> float:
        """The norm."""
        if self.norm_type == 2:
            return math.sqrt(self.power)
        return self.power if self.norm_type in (1, math.inf) else self.power ** (1 / self.norm_type)

    def coefficient(self, max_norm: float) -> float:
        """What every gradient must be multiplied by so that the norm is at most `max_norm`."""
        return clip_coefficient(self.value, max_norm)


def clip_coefficient(total: float, max_norm: float) -> float:
    """As torch: max_norm / (total + 1e-6), at most 1; NaN if the norm is NaN, 0 if it is infinite."""
    coefficient = max_norm / (total + _EPSILON)
    return 1.0 if coefficient > 1 else coefficient


def squared_norm(gradients: Iterable[Gradient]) -> float:
    """The sum of squares over all elements: parts of one model may be added."""
    return GlobalNorm.of(gradients).power


def scale_(gradients: Iterable[Gradient], coefficient: float) -> None:
    """Multiplies in place; 16-bit gradients are multiplied in float32."""
    if coefficient == 1:
        return
    for gradient in gradients:
        array = gradient.values if isinstance(gradient, SparseRows) else gradient
        with on_device_of(array), np.errstate(invalid="ignore"):  # infinity times 0: NaN, as torch has it
            if is_narrow(array.dtype):
                array[...] = widen(array) * np.float32(coefficient)
            else:
                xp(array).multiply(array, coefficient, out=array)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scales all gradients so that their norm, as if they were one vector, is at most `max_norm`; in place.

    Args:
        parameters: those without a gradient don't count; sparse gradients and several devices may be mixed.
        max_norm: at least 0.
        norm_type: p of the norm; `math.inf` for the largest magnitude.
        error_if_nonfinite: raise, before anything was changed, if the norm is NaN or infinite.

    Returns:
        The norm before.

    Raises:
        ArgumentError: the norm isn't finite, and `error_if_nonfinite`; or a bad `norm_type` or `max_norm`.
    """
    if max_norm < 0:
        raise ArgumentError(f"max_norm must be at least 0, not {max_norm}: gradients would turn around")
    gradients = _owned_gradients(parameters)
    total = GlobalNorm.of(gradients, norm_type)
    if error_if_nonfinite and not math.isfinite(total.value):
        raise ArgumentError(
            f"the norm of the gradients is {total.value}, so they can't be clipped: look for the operation "
            "that made it with psf.detect_anomaly(), or pass error_if_nonfinite=False"
        )
    scale_(gradients, total.coefficient(max_norm))
    return total.value


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limits each element of each gradient to [-clip_value, clip_value], in place."""
    for gradient in _owned_gradients(parameters):
        array = gradient.values if isinstance(gradient, SparseRows) else gradient
        with on_device_of(array):
            xp(array).clip(array, -clip_value, clip_value, out=array)


def _owned_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Gradient]:
    """The gradients, each of which may be changed in place."""
    if callable(getattr(parameters, "parameters", None)):
        raise ArgumentError("gradients are clipped of parameters, not of a module: its .parameters()")
    gradients: list[Gradient] = []
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if isinstance(gradient, SparseRows):
            gradient = parameter.grad = gradient.coalesce()
        elif not getattr(gradient.flags, "writeable", True):  # CuPy's arrays always are
            gradient = parameter.grad = gradient.copy()
        gradients.append(gradient)
    return gradients


def _arrays(gradients: Iterable[Gradient]) -> Iterable[Array]:
    for gradient in gradients:
        array = gradient.coalesce().values if isinstance(gradient, SparseRows) else gradient
        if array.size:
            yield array


def _powers(array: Array, p: float) -> list[Any]:
    """The sum of |g|^p of each block (the largest |g| for infinity), as numbers or arrays without axes."""
    size = block_size(array)
    if array.size <= size:
        return [_power(array, p)]
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    cuts = list(blocks(array.shape, size))
    powers: list[Any] = [None] * len(cuts)

    def work(index: int) -> None:
        powers[index] = _power(array[cuts[index]], p)

    run_blocks(work, len(cuts), cost=3 if type(array) is np.ndarray else 0)
    return powers


def _power(block: Array, p: float) -> Any:
    scratch = scratch_for(block)
    t = scratch.like(block, 0, _FLOAT64)
    t[...] = block
    if p == 2:
        return _squares(t) if scratch.xp is np else scratch.xp.multiply(t, t, out=t).sum()
    scratch.xp.absolute(t, out=t)
    if p == math.inf:
        return t.max()
    return (t if p == 1 else scratch.xp.power(t, p, out=t)).sum()


def _squares(t: Array) -> Any:
    """The sum of squares by BLAS, in pieces so short that it uses one thread: the bits stay the same."""
    t = t.reshape(-1)
    if t.size <= _ONE_THREAD:
        return t.dot(t)
    whole = t.size - t.size % _ONE_THREAD
    rows = t[:whole].reshape(-1, _ONE_THREAD)
    return np.vecdot(rows, rows).sum() + t[whole:].dot(t[whole:])
