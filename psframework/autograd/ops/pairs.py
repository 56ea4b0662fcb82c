"""Further functions of two operands: rows for the table in `arithmetic`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.arithmetic import Binary, binary, module_of, power
from psframework.autograd.ops.elementwise import astype
from psframework.autograd.record import as_tensor
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array


def _call(name: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: getattr(module_of(a, b), name)(a, b)


def _flat(g: Array, a: Any, b: Any, o: Any) -> Any:
    return backend.xp(g).zeros_like(g)


def _first_wins(g: Array, a: Any, b: Any, o: Any) -> Any:
    # At a tie, and where the second operand is nan, the first takes all of the gradient.
    return g * ((o == a) | (b != b))


def _first_loses(g: Array, a: Any, b: Any, o: Any) -> Any:
    return g * ~((o == a) | (b != b))


def _share(g: Array, a: Any, o: Any) -> Any:
    """`exp(a - o)`, also where both are infinite."""
    xp = backend.xp(g)
    same = a == o
    return g * xp.exp(xp.where(same, 0, a) - xp.where(same, 0, o))


def _share2(g: Array, a: Any, o: Any) -> Any:
    return _share(g, a * math.log(2), o * math.log(2))


def _quotient(g: Array, a: Any, b: Any, o: Any) -> Any:
    return -g * backend.xp(g).rint((a - o) / b)


def _ldexp(a: Any, b: Any) -> Any:
    if getattr(a, "dtype", None) == backend.bfloat16:  # which has no ldexp
        return _ldexp(backend.widen(a), b).astype(a.dtype)
    return module_of(a, b).ldexp(a, b)


_FMAX = Binary("fmax", _call("fmax"), _first_wins, _first_loses, "abo", "abo")
_FMIN = Binary("fmin", _call("fmin"), _first_wins, _first_loses, "abo", "abo")
_LOGADDEXP = Binary(
    "logaddexp",
    _call("logaddexp"),
    lambda g, a, b, o: _share(g, a, o),
    lambda g, a, b, o: _share(g, b, o),
    "ao",
    "bo",
)
_LOGADDEXP2 = Binary(
    "logaddexp2",
    _call("logaddexp2"),
    lambda g, a, b, o: _share2(g, a, o),
    lambda g, a, b, o: _share2(g, b, o),
    "ao",
    "bo",
)
_FMOD = Binary("fmod", _call("fmod"), lambda g, a, b, o: g, _quotient, "", "abo")
_REMAINDER = Binary("remainder", _call("remainder"), lambda g, a, b, o: g, _quotient, "", "abo")
_FLOOR_DIVIDE = Binary("floor_divide", _call("floor_divide"), _flat, _flat, "", "")
_COPYSIGN = Binary(
    "copysign",
    _call("copysign"),
    lambda g, a, b, o: g * (backend.xp(g).sign(a) * backend.xp(g).sign(o)),
    _flat,
    "ao",
    "",
)
_LDEXP = Binary("ldexp", _ldexp, lambda g, a, b, o: _ldexp(g, b), _flat, "b", "")
_HEAVISIDE = Binary("heaviside", _call("heaviside"), _flat, lambda g, a, b, o: g * (a == 0), "", "a")


def fmax(a: Operand, b: Operand) -> Tensor:
    """The larger of both, or the one that is not nan; at a tie `a` gets the gradient."""
    return binary(_FMAX, a, b)


def fmin(a: Operand, b: Operand) -> Tensor:
    """The smaller of both, or the one that is not nan; at a tie `a` gets the gradient."""
    return binary(_FMIN, a, b)


def logaddexp(a: Operand, b: Operand) -> Tensor:
    """`log(exp(a) + exp(b))`, broadcast, without overflow."""
    return binary(_LOGADDEXP, a, b)


def logaddexp2(a: Operand, b: Operand) -> Tensor:
    """`log2(2**a + 2**b)`, broadcast, without overflow."""
    return binary(_LOGADDEXP2, a, b)


def fmod(a: Operand, b: Operand) -> Tensor:
    """The remainder of `a / b` with the sign of `a`, as C has it."""
    return binary(_FMOD, a, b)


def remainder(a: Operand, b: Operand) -> Tensor:
    """The remainder of `a / b` with the sign of `b`, as Python's `%`."""
    return binary(_REMAINDER, a, b)


def floor_divide(a: Operand, b: Operand) -> Tensor:
    """`a / b` rounded down, as Python's `//`; both derivatives are 0."""
    return binary(_FLOOR_DIVIDE, a, b)


def copysign(a: Operand, b: Operand) -> Tensor:
    """The size of `a` with the sign of `b`; the derivative with respect to `b` is 0."""
    return binary(_COPYSIGN, a, b)


def ldexp(a: Operand, b: Operand) -> Tensor:
    """`a * 2**b` for integers `b`."""
    return binary(_LDEXP, a, np.int32(b) if isinstance(b, int) else b)


def heaviside(a: Operand, b: Operand) -> Tensor:
    """0 where `a` is negative, 1 where it is positive, `b` where it is 0; to `a` the derivative is 0."""
    return binary(_HEAVISIDE, a, b)


def float_power(a: Operand, b: Operand) -> Tensor:
    """`a ** b`, computed and answered in float64."""
    wide = np.dtype(np.float64)
    return power(astype(as_tensor(a, "float_power"), wide), astype(as_tensor(b, "float_power"), wide))
