"""Functions that take numbers apart, each with two results: modf, frexp, divmod."""

from __future__ import annotations

from psframework import backend
from psframework.autograd.ops.arithmetic import subtract
from psframework.autograd.ops.pairs import floor_divide, ldexp, remainder
from psframework.autograd.ops.rounding import trunc
from psframework.autograd.record import as_tensor, constant
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array


def modf(x: Tensor | Array) -> tuple[Tensor, Tensor]:
    """The part behind the point, whose derivative is 1, and the whole number before it, whose is 0."""
    x = as_tensor(x, "modf")
    whole = trunc(x)
    return subtract(x, whole), whole


def frexp(x: Tensor | Array) -> tuple[Tensor, Tensor]:
    """A mantissa in [0.5, 1) with the sign of `x`, and the power of two, a constant, that makes it `x`."""
    x = as_tensor(x, "frexp")
    data = backend.widen(x._data)
    exponent = backend.xp(data).frexp(data)[1]
    return ldexp(x, -exponent), constant(exponent)


def divmod(a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """`a // b` and `a % b`, as Python's."""
    return floor_divide(a, b), remainder(a, b)
