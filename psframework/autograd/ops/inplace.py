"""Changes in place, recorded where they take part in a graph.

They raise the memory's version, so that a backward that needs the old values notices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from psframework import backend
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.hooks import move_keeper
from psframework.autograd.ops import arithmetic, pairs
from psframework.autograd.ops.index import plain_key, put_rule, tensors_in
from psframework.autograd.record import constant, explain, needs_grad, record, value_of
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError, AutogradError


def _guard(name: str, target: Tensor, other: object) -> bool:
    """Whether the change has to be recorded; raises where it can't be."""
    if not is_grad_enabled() or not (target._requires_grad or needs_grad(other)):
        return False
    if not backend.is_floating(target.dtype):
        raise AutogradError(
            f"{name}: a tensor of dtype {target.dtype} can't hold what requires grad: convert it by astype"
        )
    if target._node is None and target._requires_grad:
        raise AutogradError(
            f"{name}: a leaf that requires grad can be changed in place under no_grad() only; or assign .data"
        )
    if len(target._version) > 1:
        raise AutogradError(
            f"{name}: views share this memory, and their gradients would be wrong: use an operation that is "
            "not in place, or clone() first"
        )
    return True


def _write(name: str, target: Tensor, key: Any, value: Any) -> None:
    try:
        target._data[key] = value
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        if not getattr(target._data.flags, "writeable", True):
            raise ArgumentError(
                f"{name}: its array is read-only, as large ones from another process are: clone() it first"
            ) from error
        raise explain(name, error, target, key, value) from error
    target.bump_version()


def _fill(name: str, target: Tensor, other: Operand, result: Array) -> None:
    """All of `target` becomes `result`, which must not need another shape, or become an integer."""
    if result.shape != target.shape:
        raise explain(name, ValueError(f"{result.shape} does not fit into {target.shape}"), target, other)
    if backend.is_floating(result.dtype) and not backend.is_floating(target.dtype):
        raise ArgumentError(f"{name}: {result.dtype} does not fit into {target.dtype}: convert it by astype")
    _write(name, target, ..., result)


def _update(
    name: str,
    target: Tensor,
    other: Operand,
    compute: Callable[[Operand, Operand], Tensor],
    direct: Callable[[Any, Any], Any],
    keeps: bool = False,
) -> Tensor:
    value = value_of(other, name)
    if not _guard(name, target, other):
        try:
            changed = direct(target._data, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise explain(name, error, target, other) from error
        _fill(name, target, other, changed)
        return target
    before = target
    if keeps:
        before = constant(target._data.copy())  # a gradient needs what is written over here
        _become(before, target)
        other = before if other is target else other
    result = compute(before, other)
    _fill(name, target, other, result._data)
    _become(target, result)
    return target


def _become(target: Tensor, result: Tensor) -> None:
    """From here on `target` stands in the graph where `result` does."""
    before = target._node
    target._node, target._requires_grad = result._node, result._requires_grad
    if before is not None:
        move_keeper(target, before)


def add_(target: Tensor, other: Operand) -> Tensor:
    """`target += other`, in place."""
    return _update("add_", target, other, arithmetic.add, operator.add)


def subtract_(target: Tensor, other: Operand) -> Tensor:
    """`target -= other`, in place."""
    return _update("subtract_", target, other, arithmetic.subtract, operator.sub)


def multiply_(target: Tensor, other: Operand) -> Tensor:
    """`target *= other`, in place."""
    return _update("multiply_", target, other, arithmetic.multiply, operator.mul, needs_grad(other))


def divide_(target: Tensor, other: Operand) -> Tensor:
    """`target /= other`, in place."""
    return _update("divide_", target, other, arithmetic.divide, operator.truediv, other is target)


def power_(target: Tensor, other: Operand) -> Tensor:
    """`target **= other`, in place."""
    return _update("power_", target, other, arithmetic.power, operator.pow, True)


def floor_divide_(target: Tensor, other: Operand) -> Tensor:
    """`target //= other`, in place."""
    return _update("floor_divide_", target, other, pairs.floor_divide, operator.floordiv)


def remainder_(target: Tensor, other: Operand) -> Tensor:
    """`target %= other`, in place."""
    return _update("remainder_", target, other, pairs.remainder, operator.mod, needs_grad(other))


def assign(target: Tensor, key: Any, value: Operand) -> None:
    """`target[key] = value`, in place and recorded: what was at `key` has no gradient, `value` has its own.

    Raises:
        AutogradError: `target` is a leaf that requires grad, or other tensors are views of its memory.
        ArgumentError: `value` does not fit.
    """
    plain: Any = value._data if isinstance(value, Tensor) else value
    if not backend.is_array(plain) and not isinstance(plain, int | float):  # numbers fit, or are refused
        plain = backend.array_like(plain, target._data)
    recorded = _guard("assign", target, value)
    place = plain_key(key, target._data)
    _write("assign", target, place, plain)
    if recorded:
        rule = put_rule(place, target, value)
        _become(target, record("assign", target._data, rule, (target, value), tensors_in(key)))
