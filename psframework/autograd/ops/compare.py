"""Comparisons, logic and counts: constants, most of dtype bool."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from psframework import backend
from psframework.autograd.ops.arithmetic import module_of
from psframework.autograd.ops.reduce import normal_axes
from psframework.autograd.record import as_tensor, constant, explain, value_of
from psframework.autograd.tensor import Axis, Operand, Tensor
from psframework.backend import Array

Test: TypeAlias = Callable[[Operand, Operand], Tensor]


def _test(name: str, compute: Callable[[Any, Any], Any], text: str) -> Test:
    """A public function of two operands, with `text` for its docstring."""

    def apply(a: Operand, b: Operand) -> Tensor:
        try:
            return constant(backend.as_array(compute(value_of(a, name), value_of(b, name))))
        except (ValueError, TypeError, OverflowError) as error:
            raise explain(name, error, a, b) from error

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = text
    return apply


def _logical(name: str) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        return getattr(module_of(a, b), name)(a, b)

    return compute


less = _test("less", operator.lt, "`a < b`, elementwise.")
less_equal = _test("less_equal", operator.le, "`a <= b`, elementwise.")
greater = _test("greater", operator.gt, "`a > b`, elementwise.")
greater_equal = _test("greater_equal", operator.ge, "`a >= b`, elementwise.")
equal = _test("equal", operator.eq, "`a == b`, elementwise.")
not_equal = _test("not_equal", operator.ne, "`a != b`, elementwise.")
logical_and = _test("logical_and", _logical("logical_and"), "Whether both are true (not 0), elementwise.")
logical_or = _test("logical_or", _logical("logical_or"), "Whether one at least is true, elementwise.")
logical_xor = _test("logical_xor", _logical("logical_xor"), "Whether just one of both is true, elementwise.")
bitwise_and = _test("bitwise_and", operator.and_, "`a & b` of booleans or integers, elementwise.")
bitwise_or = _test("bitwise_or", operator.or_, "`a | b` of booleans or integers, elementwise.")
bitwise_xor = _test("bitwise_xor", operator.xor, "`a ^ b` of booleans or integers, elementwise.")


def logical_not(x: Tensor | Array) -> Tensor:
    """Whether `x` is false (0), elementwise."""
    data = as_tensor(x, "logical_not")._data
    return constant(backend.xp(data).logical_not(data))


def invert(x: Tensor | Array) -> Tensor:
    """`~x` of booleans or integers, elementwise."""
    x = as_tensor(x, "invert")
    try:
        return constant(~x._data)
    except TypeError as error:
        raise explain("invert", error, x) from error


def eq(a: Operand, b: Any) -> Tensor:
    """As `equal`; NotImplemented (so False) for what is no number, array or tensor."""
    return equal(a, b) if _comparable(b) else cast(Tensor, NotImplemented)


def ne(a: Operand, b: Any) -> Tensor:
    """As `not_equal`; NotImplemented (so True) for what is no number, array or tensor."""
    return not_equal(a, b) if _comparable(b) else cast(Tensor, NotImplemented)


def _comparable(value: object) -> bool:
    return isinstance(value, Tensor | int | float) or hasattr(value, "__array__")


def _over_axes(name: str, x: Tensor | Array, axis: Axis, keepdims: bool) -> Tensor:
    data = as_tensor(x, name)._data
    axes = normal_axes(name, data.ndim, axis)
    out = backend.as_array(getattr(backend.xp(data), name)(data, axis=axes))
    kept = [1 if i in axes else n for i, n in enumerate(data.shape)]
    return constant(out.reshape(kept) if keepdims else out)


def all(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements over `axis` (all by default) are true."""
    return _over_axes("all", x, axis, keepdims)


def any(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether some element over `axis` (all by default) is true."""
    return _over_axes("any", x, axis, keepdims)


def count_nonzero(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements over `axis` (all by default) are not 0."""
    return _over_axes("count_nonzero", x, axis, keepdims)
