"""Activations beside relu, tanh, sigmoid and gelu; arguments and derivatives at the kinks are torch's."""

from __future__ import annotations

from typing import Any

from psframework.autograd.ops.activation import sigmoid, sigmoid_of
from psframework.autograd.ops.arithmetic import where
from psframework.autograd.ops.elementwise import Unary, unary
from psframework.autograd.ops.index import index
from psframework.autograd.ops.reduce import normal_axis
from psframework.autograd.record import as_tensor
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

# Klambauer et al., "Self-Normalizing Neural Networks", 2017.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _log1p_exp(xp: Any, x: Array) -> Any:
    """log(1 + exp(x)); exp of a negative number only can't overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


def _silu_slope(xp: Any, g: Array, x: Array) -> Any:
    gate = sigmoid_of(xp, x)
    return g * (gate * (1 + x * (1 - gate)))


def _mish_slope(xp: Any, g: Array, x: Array) -> Any:
    t = xp.tanh(_log1p_exp(xp, x))
    return g * (t + x * (1 - t * t) * sigmoid_of(xp, x))


def _hardswish_slope(xp: Any, g: Array, x: Array) -> Any:
    return g * xp.where(x < 3, xp.where(x > -3, x / 3 + 0.5, 0), 1).astype(g.dtype)


_SILU = Unary("silu", lambda xp, x: x * sigmoid_of(xp, x), _silu_slope, True)
_MISH = Unary("mish", lambda xp, x: x * xp.tanh(_log1p_exp(xp, x)), _mish_slope, True)
_LOGSIGMOID = Unary(
    "logsigmoid",
    lambda xp, x: xp.minimum(x, 0) - xp.log1p(xp.exp(-xp.abs(x))),
    lambda xp, g, x: g * sigmoid_of(xp, -x),
    True,
)
_HARDSIGMOID = Unary(
    "hardsigmoid",
    lambda xp, x: xp.clip(x / 6 + 0.5, 0, 1),
    lambda xp, g, x: g * ((x > -3) & (x < 3)) / 6,
    True,
)
_HARDSWISH = Unary("hardswish", lambda xp, x: x * xp.clip(x + 3, 0, 6) / 6, _hardswish_slope, True)
_SOFTSIGN = Unary(
    "softsign", lambda xp, x: x / (1 + xp.abs(x)), lambda xp, g, x: g / xp.square(1 + xp.abs(x)), True
)


def silu(input: Tensor | Array) -> Tensor:
    """`input * sigmoid(input)`, also called swish (Ramachandran et al., 2017)."""
    return unary(_SILU, input)


def mish(input: Tensor | Array) -> Tensor:
    """`input * tanh(softplus(input))` (Misra, 2019)."""
    return unary(_MISH, input)


def logsigmoid(input: Tensor | Array) -> Tensor:
    """`log(sigmoid(input))`, without overflow."""
    return unary(_LOGSIGMOID, input)


def hardsigmoid(input: Tensor | Array) -> Tensor:
    """`input / 6 + 1/2`, limited to [0, 1]."""
    return unary(_HARDSIGMOID, input)


def hardswish(input: Tensor | Array) -> Tensor:
    """`input * hardsigmoid(input)` (Howard et al., 2019)."""
    return unary(_HARDSWISH, input)


def softsign(input: Tensor | Array) -> Tensor:
    """`input / (1 + |input|)`."""
    return unary(_SOFTSIGN, input)


def leaky_relu(input: Tensor | Array, negative_slope: float = 0.01) -> Tensor:
    """`input` where it is positive, else `negative_slope * input`."""
    op = Unary(
        "leaky_relu",
        lambda xp, x: xp.where(x > 0, x, x * negative_slope),
        lambda xp, g, x: xp.where(x > 0, g, g * negative_slope),
        True,
    )
    return unary(op, input)


def elu(input: Tensor | Array, alpha: float = 1.0) -> Tensor:
    """`input` where it is positive, else `alpha * (exp(input) - 1)` (Clevert et al., 2016)."""
    return unary(_exponential("elu", alpha, 1.0, 1.0), input)


def selu(input: Tensor | Array) -> Tensor:
    """A scaled `elu` that keeps mean 0 and variance 1 (Klambauer et al., 2017)."""
    return unary(_exponential("selu", _SELU_ALPHA, _SELU_SCALE, 1.0), input)


def celu(input: Tensor | Array, alpha: float = 1.0) -> Tensor:
    """`input` where it is positive, else `alpha * (exp(input / alpha) - 1)` (Barron, 2017)."""
    return unary(_exponential("celu", alpha, 1.0, 1 / alpha), input)


def _exponential(name: str, alpha: float, scale: float, rate: float) -> Unary:
    """scale * x, and to the left of 0 scale * alpha * (exp(rate * x) - 1)."""
    return Unary(
        name,
        lambda xp, x: scale * xp.where(x > 0, x, alpha * xp.expm1(rate * xp.minimum(x, 0))),
        lambda xp, g, x: (
            (scale * g) * xp.where(x > 0, 1, alpha * rate * xp.exp(rate * xp.minimum(x, 0))).astype(g.dtype)
        ),
        True,
    )


def softplus(input: Tensor | Array, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta * input)) / beta`, without overflow.

    Args:
        input: any shape.
        beta: how sharp the bend at 0 is.
        threshold: `input` itself where `beta * input` is larger.
    """
    op = Unary(
        "softplus",
        lambda xp, x: xp.where(beta * x > threshold, x, _log1p_exp(xp, beta * x) / beta),
        lambda xp, g, x: xp.where(beta * x > threshold, g, g * sigmoid_of(xp, beta * x)),
        True,
    )
    return unary(op, input)


def hardtanh(input: Tensor | Array, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`input` limited to [min_val, max_val]; the derivative at both ends is 0, unlike that of `clip`."""
    return unary(_limited("hardtanh", min_val, max_val), input)


def relu6(input: Tensor | Array) -> Tensor:
    """`input` limited to [0, 6]; the derivative at both ends is 0."""
    return unary(_limited("relu6", 0.0, 6.0), input)


def _limited(name: str, low: float, high: float) -> Unary:
    if low > high:
        raise ArgumentError(f"{name}: min_val {low} is above max_val {high}")
    return Unary(
        name, lambda xp, x: xp.clip(x, low, high), lambda xp, g, x: g * ((x > low) & (x < high)), True
    )


def prelu(input: Tensor | Array, weight: Tensor | Array) -> Tensor:
    """`input` where it is positive, else `weight * input` (He et al., 2015).

    Args:
        input: (batch, channels, ...), or any shape for one weight.
        weight: (1,) or (channels,).
    """
    x, w = as_tensor(input, "prelu"), as_tensor(weight, "prelu")
    if w.size != 1:
        channels = x.shape[1] if x.ndim > 1 else 1
        if w.shape != (channels,):
            raise ArgumentError(f"prelu: weight of shape {w.shape} for {channels} channels of {x.shape}")
        w = w.reshape([-1 if i == 1 else 1 for i in range(x.ndim)])
    elif w.ndim > x.ndim:
        w = w.reshape(())
    return where(x > 0, x, x * w)


def glu(input: Tensor | Array, axis: int = -1) -> Tensor:
    """The first half of `input` along `axis` times the sigmoid of the second (Dauphin et al., 2017)."""
    x = as_tensor(input, "glu")
    place = normal_axis("glu", x.ndim, axis)
    half, odd = divmod(x.shape[place], 2)
    if odd:
        raise ArgumentError(f"glu: axis {axis} of shape {x.shape} has no halves: its length must be even")
    before = (slice(None),) * place
    return index(x, (*before, slice(half))) * sigmoid(index(x, (*before, slice(half, None))))
