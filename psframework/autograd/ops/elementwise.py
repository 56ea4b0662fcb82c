"""Elementwise operations of one operand: a table of forward functions and derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from psframework import backend
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.record import (
    as_tensor,
    constant,
    explain,
    guarded,
    record,
    record_node,
    refuse_complex,
)
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType


class Unary(NamedTuple):
    """How to compute one function and its derivative.

    Attributes:
        name: of the operation.
        forward: (module, x) -> result.
        derivative: (module, gradient, kept array) -> gradient of x.
        keeps_input: whether the derivative reads `x`; else it reads the result.

    Both functions see 16-bit floats as float32.
    """

    name: str
    forward: Callable[[Any, Array], Any]
    derivative: Callable[[Any, Array, Array], Any]
    keeps_input: bool


def unary(op: Unary, x: Tensor | Array) -> Tensor:
    """Apply `op` to `x`, and record it."""
    if not isinstance(x, Tensor):
        x = as_tensor(x, op.name)
    data = x._data
    xp = backend.xp(data)
    narrow = data.dtype.itemsize == 2 and backend.is_narrow(data.dtype)
    try:
        out = _narrowed(op.forward(xp, backend.widen(data)), data.dtype) if narrow else op.forward(xp, data)
    except TypeError as error:
        raise explain(op.name, error, x) from error
    if type(out) is not np.ndarray:
        out = backend.as_array(out)
    if not (x._requires_grad and is_grad_enabled()):
        return constant(out)
    derivative = _in_float32(op.derivative) if narrow else op.derivative
    edges = (x._node or x,)
    if op.keeps_input:
        return record_node(
            op.name, out, lambda g: (derivative(xp, g, data),), edges, ((x._version, x.version),)
        )
    return record_node(op.name, out, lambda g: (derivative(xp, g, out),), edges, (), True)


def _narrowed(result: Any, dtype: DType) -> Any:
    """What was computed in float32, in `dtype` again; masks stay what they are."""
    return result.astype(dtype) if result.dtype == np.float32 else result


def _in_float32(derivative: Callable[[Any, Array, Array], Any]) -> Callable[[Any, Array, Array], Any]:
    def wide(xp: Any, g: Array, kept: Array) -> Any:
        return derivative(xp, backend.widen(g), backend.widen(kept)).astype(g.dtype)

    return wide


def operation(op: Unary, text: str) -> Callable[[Tensor | Array], Tensor]:
    """A row of a table as a public function, with `text` for its docstring."""

    def apply(x: Tensor | Array) -> Tensor:
        return unary(op, x)

    apply.__name__ = apply.__qualname__ = op.name
    apply.__doc__ = text
    return apply


_LOG_2, _LOG_10 = math.log(2), math.log(10)

negative = operation(Unary("negative", lambda xp, x: -x, lambda xp, g, o: -g, False), "`-x`.")
positive = operation(
    Unary("positive", lambda xp, x: xp.positive(x), lambda xp, g, o: g, False), "A copy of `x`."
)
fabs = operation(
    Unary("fabs", lambda xp, x: xp.fabs(x), lambda xp, g, x: g * xp.sign(x), True),
    "`|x|` as a float; the derivative at 0 is 0.",
)
absolute = operation(
    Unary("absolute", lambda xp, x: xp.abs(x), lambda xp, g, x: g * xp.sign(x), True),
    "`|x|`; the derivative at 0 is 0.",
)
square = operation(
    Unary("square", lambda xp, x: xp.square(x), lambda xp, g, x: g * (2 * x), True), "`x * x`."
)
reciprocal = operation(
    Unary("reciprocal", lambda xp, x: xp.reciprocal(x), lambda xp, g, o: -g * (o * o), False), "`1 / x`."
)
sqrt = operation(
    Unary("sqrt", lambda xp, x: xp.sqrt(x), lambda xp, g, o: g * 0.5 / o, False),
    "Square root; its derivative at 0 is infinite.",
)
cbrt = operation(
    Unary("cbrt", lambda xp, x: xp.cbrt(x), lambda xp, g, o: g / (3 * o * o), False),
    "Cube root, of negative numbers too; its derivative at 0 is infinite.",
)
exp = operation(
    Unary("exp", lambda xp, x: xp.exp(x), lambda xp, g, o: g * o, False), "e to the power of `x`."
)
exp2 = operation(
    Unary("exp2", lambda xp, x: xp.exp2(x), lambda xp, g, o: g * (o * _LOG_2), False),
    "2 to the power of `x`.",
)
expm1 = operation(
    Unary("expm1", lambda xp, x: xp.expm1(x), lambda xp, g, o: g * (o + 1), False),
    "`exp(x) - 1`, exact for small `x`.",
)
log = operation(Unary("log", lambda xp, x: xp.log(x), lambda xp, g, x: g / x, True), "Natural logarithm.")
log2 = operation(
    Unary("log2", lambda xp, x: xp.log2(x), lambda xp, g, x: g / (x * _LOG_2), True), "Logarithm to base 2."
)
log10 = operation(
    Unary("log10", lambda xp, x: xp.log10(x), lambda xp, g, x: g / (x * _LOG_10), True),
    "Logarithm to base 10.",
)
log1p = operation(
    Unary("log1p", lambda xp, x: xp.log1p(x), lambda xp, g, x: g / (x + 1), True),
    "`log(1 + x)`, exact for small `x`.",
)
erf = operation(
    Unary(
        "erf",
        lambda xp, x: backend.erf(x),
        lambda xp, g, x: g * (xp.exp(-x * x) * (2 / math.sqrt(math.pi))),
        True,
    ),
    "The error function: 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to `x`.",
)


@guarded("astype")
def astype(x: Tensor | Array, dtype: Any) -> Tensor:
    """`x` in another dtype, `x` itself if it has it. A gradient passes between floating dtypes only."""
    x = as_tensor(x, "astype")
    source, target = x._data.dtype, backend.dtype_from_name(backend.dtype_name(dtype))
    if source == target:
        return x
    out = x._data.astype(target)
    if x._requires_grad and is_grad_enabled():
        refuse_complex("astype", target)
    if not (x._requires_grad and is_grad_enabled() and backend.is_floating(target)):
        return constant(out)
    return record("astype", out, lambda g: (g.astype(source),), (x,))


def clone(x: Tensor | Array) -> Tensor:
    """A copy of `x` in memory of its own, through which gradients pass."""
    x = as_tensor(x, "clone")
    out = x._data.copy()
    if not (x._requires_grad and is_grad_enabled()):
        return constant(out)
    return record("clone", out, lambda g: (g,), (x,))
