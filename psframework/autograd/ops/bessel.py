"""The modified Bessel function of order 0, which NumPy has for the Kaiser window."""

from __future__ import annotations

import math
from typing import Any

from psframework.autograd.ops.elementwise import Unary, operation
from psframework.backend import Array

# Cosines of the middles of equal parts of a quarter circle. The integrand is periodic and smooth, so that the
# midpoint rule converges faster than any power: these are enough up to 713, where i0 overflows.
_COSINES = tuple(math.cos((i + 0.5) / 64 * math.pi / 2) for i in range(64))


def _slope(xp: Any, g: Array, x: Array) -> Any:
    """`g` times order 1, which is the mean of cos(t) * sinh(x * cos(t)) over a quarter circle."""
    total = xp.zeros_like(x)
    for cosine in _COSINES:
        total += cosine * xp.sinh(x * cosine)
    return g * total / len(_COSINES)


i0 = operation(
    Unary("i0", lambda xp, x: xp.i0(x), _slope, True),
    "Modified Bessel function of the first kind, order 0, as NumPy's.",
)
