"""Comparisons: constants of dtype bool."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from psframework import backend
from psframework.autograd.record import constant, value_of
from psframework.autograd.tensor import Operand, Tensor
from psframework.errors import ArgumentError


def _compare(name: str, test: Callable[[Any, Any], Any], a: Operand, b: Operand) -> Tensor:
    x, y = value_of(a, name), value_of(b, name)
    try:
        return constant(backend.as_array(test(x, y)))
    except ValueError as error:
        raise ArgumentError(f"{name}: shapes do not broadcast: {error}") from error


def lt(a: Operand, b: Operand) -> Tensor:
    """`a < b`, elementwise."""
    return _compare("<", operator.lt, a, b)


def le(a: Operand, b: Operand) -> Tensor:
    """`a <= b`, elementwise."""
    return _compare("<=", operator.le, a, b)


def gt(a: Operand, b: Operand) -> Tensor:
    """`a > b`, elementwise."""
    return _compare(">", operator.gt, a, b)


def ge(a: Operand, b: Operand) -> Tensor:
    """`a >= b`, elementwise."""
    return _compare(">=", operator.ge, a, b)


def eq(a: Operand, b: Any) -> Tensor:
    """`a == b`, elementwise; NotImplemented (so False) for what is no number, array or tensor."""
    if not _comparable(b):
        return cast(Tensor, NotImplemented)
    return _compare("==", operator.eq, a, b)


def ne(a: Operand, b: Any) -> Tensor:
    """`a != b`, elementwise; NotImplemented (so True) for what is no number, array or tensor."""
    if not _comparable(b):
        return cast(Tensor, NotImplemented)
    return _compare("!=", operator.ne, a, b)


def _comparable(value: object) -> bool:
    return isinstance(value, Tensor | int | float) or hasattr(value, "__array__")
