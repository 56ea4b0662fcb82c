"""Activations, elementwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from psframework import backend
from psframework.autograd.ops import fused
from psframework.autograd.ops.elementwise import Unary, unary
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def sigmoid_of(xp: Any, x: Array) -> Any:
    """The sigmoid of an array."""
    # exp of a negative number only: it can't overflow, and small results keep all their digits.
    small = xp.exp(-xp.abs(x))
    return xp.maximum(x >= 0, small) / (1 + small)


_RELU = Unary("relu", lambda xp, x: xp.maximum(x, 0), lambda xp, g, o: g * o.astype(bool), False)
_TANH = Unary("tanh", lambda xp, x: xp.tanh(x), lambda xp, g, o: g * (1 - o * o), False)
_SIGMOID = Unary("sigmoid", sigmoid_of, lambda xp, g, o: g * (o * (1 - o)), False)


def relu(input: Tensor | Array) -> Tensor:
    """`max(input, 0)`; the derivative at 0 is 0."""
    return unary(_RELU, input)


def tanh(input: Tensor | Array) -> Tensor:
    """Hyperbolic tangent."""
    return unary(_TANH, input)


def sigmoid(input: Tensor | Array) -> Tensor:
    """`1 / (1 + exp(-input))`, without overflow."""
    return unary(_SIGMOID, input)


_ROOT = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _gelu_parts(data: Array, approximate: str) -> tuple[Array, Array]:
    """The gate by which gelu multiplies `x`, and the gate's derivative."""
    xp = backend.xp(data)
    if approximate == "none":
        gate = (backend.erf(data * (1 / math.sqrt(2))) + 1) * 0.5
        return gate, xp.exp(data * data * -0.5) * (1 / math.sqrt(2 * math.pi))
    square = data * data
    t = xp.tanh(data * (square * (_ROOT * _CUBIC) + _ROOT))
    return (t + 1) * 0.5, (1 - t * t) * (square * (1.5 * _ROOT * _CUBIC) + 0.5 * _ROOT)


def gelu(input: Tensor | Array, approximate: str = "none") -> Tensor:
    """`input` times the normal distribution's cumulative function (Hendrycks and Gimpel, 2016).

    Args:
        input: any shape, floating. 16-bit floats are computed in float32.
        approximate: "none" for the exact function, "tanh" for the usual approximation.
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate={approximate!r} is neither 'none' nor 'tanh'")
    input = as_tensor(input, "gelu")
    dtype = input._data.dtype
    if not backend.is_floating(dtype):
        raise ArgumentError(f"gelu: dtype {dtype} is not floating: convert with .astype(np.float32)")
    if (kernels := backend.fused(input._data)) is not None:
        return fused.gelu(kernels, input, approximate)
    data = backend.widen(input._data)
    gate, slope = _gelu_parts(data, approximate)
    out = backend.as_array(data * gate).astype(dtype, copy=False)
    if not recording(input):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        return ((gradient * (gate + data * slope)).astype(dtype, copy=False),)

    return record("gelu", out, rule, (input,), (input,))
