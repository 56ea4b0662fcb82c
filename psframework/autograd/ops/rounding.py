"""Signs, rounding, and tests of single elements: the derivative is 0, or there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from psframework import backend
from psframework.autograd.ops.elementwise import Unary, operation, unary
from psframework.autograd.record import as_tensor, constant
from psframework.autograd.tensor import Tensor
from psframework.backend import Array


def _flat(xp: Any, g: Array, o: Array) -> Any:
    return xp.zeros_like(g)


sign = operation(Unary("sign", lambda xp, x: xp.sign(x), _flat, False), "-1, 0 or 1; the derivative is 0.")
floor = operation(
    Unary("floor", lambda xp, x: xp.floor(x), _flat, False),
    "The largest whole number not above; the derivative is 0.",
)
ceil = operation(
    Unary("ceil", lambda xp, x: xp.ceil(x), _flat, False),
    "The smallest whole number not below; the derivative is 0.",
)
trunc = operation(
    Unary("trunc", lambda xp, x: xp.trunc(x), _flat, False),
    "The whole number next to it towards 0; the derivative is 0.",
)
rint = operation(
    Unary("rint", lambda xp, x: xp.rint(x), _flat, False),
    "The nearest whole number, the even one of two; the derivative is 0.",
)


def round(x: Tensor | Array, decimals: int = 0) -> Tensor:
    """`x` to `decimals` places, the even one of two equally near; the derivative is 0."""
    return unary(Unary("round", lambda xp, x: xp.around(x, decimals), _flat, False), x)


def nan_to_num(
    x: Tensor | Array, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers in place of nan and infinities; their derivative is 0, everyone else's 1.

    Args:
        x: any shape.
        nan: stands for nan.
        posinf: for infinity; the largest number of the dtype if None.
        neginf: for minus infinity; the smallest if None.
    """
    x = as_tensor(x, "nan_to_num")
    if backend.is_narrow(x.dtype):  # computed in float32, which has other limits
        limit = float(ml_dtypes.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
        posinf, neginf = limit if posinf is None else posinf, -limit if neginf is None else neginf
    replace = Unary(
        "nan_to_num",
        lambda xp, x: xp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf),
        lambda xp, g, x: g * xp.isfinite(x),
        True,
    )
    return unary(replace, x)


def _test(name: str, text: str) -> Callable[[Tensor | Array], Tensor]:
    def apply(x: Tensor | Array) -> Tensor:
        data = as_tensor(x, name)._data
        return constant(getattr(backend.xp(data), name)(data))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = text
    return apply


isnan = _test("isnan", "Where elements are nan: a constant of dtype bool.")
isinf = _test("isinf", "Where elements are infinite: a constant of dtype bool.")
isfinite = _test("isfinite", "Where elements are neither nan nor infinite: a constant of dtype bool.")
