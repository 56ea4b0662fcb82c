"""Elementwise operations of two operands: a table of forward functions and of both derivatives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from psframework import backend
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.node import Edge, Rule, Version
from psframework.autograd.record import (
    as_tensor,
    constant,
    explain,
    record,
    record_node,
    recording,
    refuse_complex,
    sum_to,
    value_of,
    versions_of,
)
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError

# (gradient, first operand, second operand, result) -> contribution of one operand, still broadcast.
# Operands and result may be None where the table does not list them as read.
Partial: TypeAlias = Callable[[Array, Any, Any, Any], Any]

_ndarray = np.ndarray
_NUMBERS = frozenset((int, float, bool))
_WIDE = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
_BITS: dict[int, DType] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}


class Binary(NamedTuple):
    """How to compute one function and both derivatives, which see 16-bit floats as float32."""

    name: str
    forward: Callable[[Any, Any], Any]
    to_a: Partial
    to_b: Partial
    to_a_reads: str  # which of "a", "b" and "o" (the result)
    to_b_reads: str
    # (first operand, second operand) -> the rule for operands of one shape and dtype: these are most, and
    # need no broadcasting undone.
    alike: Callable[[Array, Array], Rule] | None = None


def module_of(a: Any, b: Any) -> Any:
    """The module that computes with two operands, of which either may be a number."""
    return backend.xp(a) if backend.is_array(a) else backend.xp(b) if backend.is_array(b) else np


def _maximum(a: Any, b: Any) -> Any:
    return module_of(a, b).maximum(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return module_of(a, b).minimum(a, b)


def _power(a: Any, b: Any) -> Any:
    # Seventy times as fast as pow; NumPy itself does so for 2 only. Not in 16 bits, which would round twice.
    if type(b) in _NUMBERS and b in (3, 4) and backend.is_array(a) and a.dtype in _WIDE:
        return a * a * a if b == 3 else module_of(a, b).square(a * a)
    return a**b


def _power_to_a(g: Array, a: Any, b: Any, o: Any) -> Any:
    # Where the exponent is 0 the derivative is 0, also at a = 0, where a ** -1 is infinite.
    if isinstance(b, int | float):
        return g * (b * _power(a, b - 1 if b else 1))
    return g * (b * a ** backend.xp(g).where(b == 0, 1, b - 1))


def _power_to_b(g: Array, a: Any, b: Any, o: Any) -> Any:
    # At a = 0 it is 0 for b >= 0; below, -inf.
    xp = backend.xp(o)
    return g * o * xp.log(xp.where((a == 0) & (b >= 0), 1, a), dtype=o.dtype)


def _winner(g: Array, a: Any, b: Any, o: Any) -> Any:
    # A tie gives each operand one half.
    share = (a == o).astype(g.dtype)
    share *= 1 - (b == o) * g.dtype.type(0.5)
    return g * share


def _second(g: Array, a: Any, b: Any, o: Any) -> Any:
    return _winner(g, b, a, o)


def _pass(g: Array, a: Any, b: Any, o: Any) -> Any:
    return g


def _to_both(g: Array) -> Sequence[Array]:
    return (g, g)


def _to_difference(g: Array) -> Sequence[Array]:
    return (g, -g)


_ADD = Binary("add", operator.add, _pass, _pass, "", "", lambda x, y: _to_both)
_SUBTRACT = Binary(
    "subtract", operator.sub, _pass, lambda g, a, b, o: -g, "", "", lambda x, y: _to_difference
)
_MULTIPLY = Binary(
    "multiply", operator.mul, lambda g, a, b, o: g * b, lambda g, a, b, o: g * a, "b", "a",
    lambda x, y: lambda g: (g * y, g * x),
)  # fmt: skip
_DIVIDE = Binary(
    "divide", operator.truediv, lambda g, a, b, o: g / b, lambda g, a, b, o: -g * o / b, "b", "bo"
)
_POWER = Binary("power", _power, _power_to_a, _power_to_b, "ab", "abo")
_MAXIMUM = Binary("maximum", _maximum, _winner, _second, "abo", "abo")
_MINIMUM = Binary("minimum", _minimum, _winner, _second, "abo", "abo")


def binary(op: Binary, a: Operand, b: Operand) -> Tensor:
    """Apply `op` to `a` and `b`, and record it."""
    a_edge: Edge = None
    b_edge: Edge = None
    x: Any
    y: Any
    if isinstance(a, Tensor):
        x = a._data
        if a._requires_grad:
            a_edge = a._node or a
    else:
        x = value_of(a, op.name)
    if isinstance(b, Tensor):
        y = b._data
        if b._requires_grad:
            b_edge = b._node or b
    else:
        y = value_of(b, op.name)
    if type(y) in _NUMBERS:
        y = _beside(y, x)
    elif type(x) in _NUMBERS:
        x = _beside(x, y)
    try:
        out = op.forward(x, y)
    except (ValueError, TypeError, OverflowError) as error:
        raise explain(op.name, error, a, b) from error
    if type(out) is not _ndarray:
        out = backend.as_array(out)
    if (a_edge is None and b_edge is None) or not is_grad_enabled():
        return constant(out)
    alike = op.alike
    if alike and a_edge is not None and b_edge is not None and x.shape == y.shape and x.dtype is y.dtype:
        versions = _versions(a, b) if op.to_a_reads else ()
        return record_node(op.name, out, alike(x, y), (a_edge, b_edge), versions)
    return _record(op, out, (x, y), (a_edge, b_edge), (a, b))


def _versions(a: Any, b: Any) -> tuple[tuple[Version, int], ...]:
    x, y = a._version, b._version
    return ((x, x[0]), (y, y[0]))


def _record(
    op: Binary, out: Array, arrays: tuple[Any, Any], edges: tuple[Edge, Edge], operands: tuple[Any, Any]
) -> Tensor:
    refuse_complex(op.name, out.dtype)
    (x, y), (a_edge, b_edge), (a, b) = arrays, edges, operands
    a_like = None if a_edge is None else (x.shape, x.dtype)
    b_like = None if b_edge is None else (y.shape, y.dtype)
    reads = (op.to_a_reads if a_like else "") + (op.to_b_reads if b_like else "")
    kept_x, kept_y = x if "a" in reads else None, y if "b" in reads else None
    kept_out = out if "o" in reads else None
    to_a, to_b = op.to_a, op.to_b

    def rule(g: Array) -> Sequence[Array | None]:
        p, q, o = kept_x, kept_y, kept_out
        if g.dtype.itemsize == 2:
            g, p, q, o = _widened(g), _widened(p), _widened(q), _widened(o)
        return (
            None if a_like is None else sum_to(to_a(g, p, q, o), *a_like),
            None if b_like is None else sum_to(to_b(g, p, q, o), *b_like),
        )

    if kept_x is None and kept_y is None:
        return record_node(op.name, out, rule, edges, (), kept_out is not None)
    saved = (a if kept_x is not None else None, b if kept_y is not None else None)
    return record_node(op.name, out, rule, edges, versions_of(saved), kept_out is not None)


def _beside(number: float, array: Any) -> Any:
    """`number` as it has to be to leave `array` its dtype: bfloat16 gives way to Python's numbers."""
    if type(array) in _NUMBERS:
        return np.asarray(number)  # of two numbers NumPy's result is wanted, not Python's
    if getattr(array, "dtype", None) == backend.bfloat16:
        return backend.array_like(number, array, backend.bfloat16)
    return number


def _widened(value: Any) -> Any:
    return backend.widen(value) if backend.is_array(value) else value


def add(a: Operand, b: Operand) -> Tensor:
    """`a + b`, broadcast."""
    return binary(_ADD, a, b)


def subtract(a: Operand, b: Operand) -> Tensor:
    """`a - b`, broadcast."""
    return binary(_SUBTRACT, a, b)


def multiply(a: Operand, b: Operand) -> Tensor:
    """`a * b`, broadcast."""
    return binary(_MULTIPLY, a, b)


def divide(a: Operand, b: Operand) -> Tensor:
    """`a / b`, broadcast."""
    return binary(_DIVIDE, a, b)


def power(a: Operand, b: Operand) -> Tensor:
    """`a ** b`, broadcast. With respect to `b` the derivative at `a = 0` is 0, and nan where `a < 0`."""
    return binary(_POWER, a, b)


def maximum(a: Operand, b: Operand) -> Tensor:
    """The larger of both, elementwise; at a tie each gets half the gradient."""
    return binary(_MAXIMUM, a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """The smaller of both, elementwise; at a tie each gets half the gradient."""
    return binary(_MINIMUM, a, b)


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """`a` where `condition` holds, else `b`; the three are broadcast.

    Args:
        condition: booleans.
        a: anything of a shape that broadcasts.
        b: the same.
    """
    chosen = as_tensor(condition, "where")._data
    if chosen.dtype.kind != "b":
        raise ArgumentError(
            f"where: the condition must be of dtype bool, not {chosen.dtype}: compare something"
        )
    xp = backend.xp(chosen)

    def forward(x: Any, y: Any) -> Any:
        return xp.where(chosen, x, y)

    return binary(
        Binary(
            "where",
            forward,
            lambda g, a, b, o: _only(g, chosen),
            lambda g, a, b, o: _only(g, ~chosen),
            "",
            "",
        ),
        a,
        b,
    )


def _only(g: Array, mask: Array) -> Any:
    """`g` where `mask` holds, else 0, also where `g` is infinite or nan.

    On bits, because `xp.where` takes up to ten times as long.
    """
    bits = g.view(_BITS[g.dtype.itemsize]) & -mask.view(np.int8)
    return bits.view(g.dtype)


def clip(x: Tensor | Array, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """`x` limited to [low, high]; the gradient passes where `x` lies inside, ends included.

    Args:
        x: any shape.
        low: number, array or tensor that broadcasts, which gets the gradient of what lies below; None for no
            limit.
        high: likewise for what lies above.
    """
    if low is None and high is None:
        raise ArgumentError("clip: give at least one of low and high")
    x = as_tensor(x, "clip")
    data = x._data
    below, above = (None if v is None else _beside(value_of(v, "clip"), data) for v in (low, high))
    try:
        out = backend.as_array(backend.xp(data).clip(data, below, above))
    except (ValueError, TypeError, OverflowError) as error:
        raise explain("clip", error, x, low, high) from error
    if not recording(x, low, high):
        return constant(out)
    operands = (x, low, high)
    likes = [(v.shape, v.dtype) if isinstance(v, Tensor) and v._requires_grad else None for v in operands]

    def rule(g: Array) -> Sequence[Array | None]:
        fits: Any = True if above is None else data <= above
        inside = fits
        if below is not None:
            ordered = above is None or below <= above
            if ordered is not True:
                fits = fits & ordered  # where the limits cross, the upper one wins
            inside = fits & (data >= below)
        shares: tuple[Callable[[], Any], ...] = (lambda: inside, lambda: fits & ~inside, lambda: ~fits)
        g = backend.widen(g)
        return [
            None if like is None else sum_to(_only(g, part()), *like) for part, like in zip(shares, likes)
        ]

    return record("clip", out, rule, operands, operands)
