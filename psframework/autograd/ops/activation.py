"""Activations, elementwise."""

from __future__ import annotations

from collections.abc import Sequence

from psframework import backend
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array


def relu(x: Tensor | Array) -> Tensor:
    """`max(x, 0)`; the derivative at 0 is 0."""
    x = as_tensor(x, "relu")
    out = backend.xp(x._data).maximum(x._data, 0)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array | None]:
        return (gradient * (out > 0),)

    return record("relu", out, rule, (x,), saves_output=True)
