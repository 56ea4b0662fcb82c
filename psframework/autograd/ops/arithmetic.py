"""Elementwise operations. Each states its derivative with respect to each operand in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from psframework.autograd.record import (
    constant,
    needs_grad,
    record,
    recording,
    sum_to,
    value_of,
)
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array

# (gradient, first operand, second operand, result) -> the contribution of one operand, before broadcasting is undone
Partial: TypeAlias = Callable[[Array, Any, Any, Any], Any]


def _binary(
    name: str, a: Operand, b: Operand, out: Array, partials: tuple[Partial, Partial], saved: str
) -> Tensor:
    """Record an operation of two operands.

    Args:
        name: of the operation.
        a: first operand.
        b: second operand.
        out: the result.
        partials: derivative with respect to `a`, and to `b`.
        saved: which of "a", "b" and "o" (the result) the partials read.
    """
    if not recording(a, b):
        return constant(out)
    x = _operand(a, "a" in saved)
    y = _operand(b, "b" in saved)
    kept = out if "o" in saved else None
    a_needs, b_needs = needs_grad(a), needs_grad(b)
    a_like, b_like = _Like(a), _Like(b)

    def rule(gradient: Array) -> Sequence[Array | None]:
        return (
            sum_to(partials[0](gradient, x, y, kept), a_like) if a_needs else None,
            sum_to(partials[1](gradient, x, y, kept), b_like) if b_needs else None,
        )

    keeps = (a if "a" in saved else None, b if "b" in saved else None)
    return record(name, out, rule, (a, b), keeps, "o" in saved)


class _Like:
    """Shape and dtype of an operand, without its array."""

    __slots__ = ("dtype", "shape")

    def __init__(self, operand: Operand) -> None:
        self.shape = getattr(operand, "shape", ())
        self.dtype = getattr(operand, "dtype", None)


def _operand(operand: Operand, read: bool) -> Any:
    if not read:
        return None
    return operand._data if isinstance(operand, Tensor) else operand


def add(a: Operand, b: Operand) -> Tensor:
    """`a + b`, broadcast."""
    out = value_of(a, "add") + value_of(b, "add")
    return _binary("add", a, b, out, (lambda g, a, b, o: g, lambda g, a, b, o: g), "")


def subtract(a: Operand, b: Operand) -> Tensor:
    """`a - b`, broadcast."""
    out = value_of(a, "subtract") - value_of(b, "subtract")
    return _binary("subtract", a, b, out, (lambda g, a, b, o: g, lambda g, a, b, o: -g), "")


def multiply(a: Operand, b: Operand) -> Tensor:
    """`a * b`, broadcast."""
    out = value_of(a, "multiply") * value_of(b, "multiply")
    return _binary("multiply", a, b, out, (lambda g, a, b, o: g * b, lambda g, a, b, o: g * a), "ab")


def divide(a: Operand, b: Operand) -> Tensor:
    """`a / b`, broadcast."""
    out = value_of(a, "divide") / value_of(b, "divide")
    return _binary("divide", a, b, out, (lambda g, a, b, o: g / b, lambda g, a, b, o: -g * o / b), "bo")
