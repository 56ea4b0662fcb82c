"""Circular and hyperbolic functions and their inverses, elementwise."""

from __future__ import annotations

import math
from typing import Any

from psframework.autograd.ops.arithmetic import Binary, binary, module_of
from psframework.autograd.ops.elementwise import Unary, operation
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array

_DEGREE = math.pi / 180

sin = operation(
    Unary("sin", lambda xp, x: xp.sin(x), lambda xp, g, x: g * xp.cos(x), True), "Sine of radians."
)
cos = operation(
    Unary("cos", lambda xp, x: xp.cos(x), lambda xp, g, x: -g * xp.sin(x), True), "Cosine of radians."
)
tan = operation(
    Unary("tan", lambda xp, x: xp.tan(x), lambda xp, g, o: g * (1 + o * o), False), "Tangent of radians."
)
arcsin = operation(
    Unary("arcsin", lambda xp, x: xp.arcsin(x), lambda xp, g, x: g / xp.sqrt(1 - x * x), True),
    "Inverse sine, in radians; nan outside [-1, 1].",
)
arccos = operation(
    Unary("arccos", lambda xp, x: xp.arccos(x), lambda xp, g, x: -g / xp.sqrt(1 - x * x), True),
    "Inverse cosine, in radians; nan outside [-1, 1].",
)
arctan = operation(
    Unary("arctan", lambda xp, x: xp.arctan(x), lambda xp, g, x: g / (1 + x * x), True),
    "Inverse tangent, in radians.",
)
sinh = operation(
    Unary("sinh", lambda xp, x: xp.sinh(x), lambda xp, g, x: g * xp.cosh(x), True), "Hyperbolic sine."
)
cosh = operation(
    Unary("cosh", lambda xp, x: xp.cosh(x), lambda xp, g, x: g * xp.sinh(x), True), "Hyperbolic cosine."
)
arcsinh = operation(
    Unary("arcsinh", lambda xp, x: xp.arcsinh(x), lambda xp, g, x: g / xp.sqrt(x * x + 1), True),
    "Inverse hyperbolic sine.",
)
arccosh = operation(
    Unary("arccosh", lambda xp, x: xp.arccosh(x), lambda xp, g, x: g / xp.sqrt(x * x - 1), True),
    "Inverse hyperbolic cosine; nan below 1.",
)
arctanh = operation(
    Unary("arctanh", lambda xp, x: xp.arctanh(x), lambda xp, g, x: g / (1 - x * x), True),
    "Inverse hyperbolic tangent; nan outside [-1, 1].",
)
deg2rad = operation(
    Unary("deg2rad", lambda xp, x: xp.deg2rad(x), lambda xp, g, o: g * _DEGREE, False), "Degrees to radians."
)
rad2deg = operation(
    Unary("rad2deg", lambda xp, x: xp.rad2deg(x), lambda xp, g, o: g / _DEGREE, False), "Radians to degrees."
)


def _sinc_slope(xp: Any, g: Array, x: Array) -> Any:
    t = x * math.pi
    near = xp.abs(t) < 0.1  # where the difference below would cancel, four terms of its series are exact
    square = t * t
    series = t * (((square / 45360 - 1 / 840) * square + 1 / 30) * square - 1 / 3)
    t = xp.where(near, 1, t).astype(x.dtype)
    return g * xp.where(near, series, (xp.cos(t) - xp.sin(t) / t) / t) * math.pi


sinc = operation(
    Unary("sinc", lambda xp, x: xp.sinc(x), _sinc_slope, True), "sin(pi x) / (pi x), and 1 at 0, as NumPy's."
)

_ARCTAN2 = Binary(
    "arctan2",
    lambda a, b: module_of(a, b).arctan2(a, b),
    lambda g, a, b, o: g * b / _square(g, a, b),
    lambda g, a, b, o: -g * a / _square(g, a, b),
    "ab",
    "ab",
)
_HYPOT = Binary(
    "hypot",
    lambda a, b: module_of(a, b).hypot(a, b),
    lambda g, a, b, o: g * (a / o),
    lambda g, a, b, o: g * (b / o),
    "ao",
    "bo",
)


def _square(g: Array, a: Any, b: Any) -> Any:
    """The squared distance from the origin, 1 in it; in the dtype of `g`: small integers would overflow."""
    xp = module_of(g, g)
    square = xp.square(a, dtype=g.dtype) + xp.square(b, dtype=g.dtype)
    return xp.where(square == 0, 1, square).astype(g.dtype)


def arctan2(a: Operand, b: Operand) -> Tensor:
    """The angle of the point (b, a), in radians; in the origin both derivatives are 0."""
    return binary(_ARCTAN2, a, b)


def hypot(a: Operand, b: Operand) -> Tensor:
    """`sqrt(a**2 + b**2)`, broadcast, without overflow; in the origin both derivatives are nan."""
    return binary(_HYPOT, a, b)
