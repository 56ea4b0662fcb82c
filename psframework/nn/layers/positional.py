"""Where in a sequence something stands, told to layers that would not know: positional encodings."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from psframework.autograd import Tensor
from psframework.autograd.ops.rotary import rotate_pairs
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import init
from psframework.nn.making import empty, is_bounded
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter

Operand: TypeAlias = Tensor | Array


class SinusoidalPositionalEncoding(Module):
    """Adds sines and cosines of the place, of wave lengths from 2 pi to 2 pi * base (Vaswani et al., 2017).

    Args:
        d_model: features, an even number.
        max_len: longest sequence.
        batch_first: (batch, time, d_model) instead of (time, batch, d_model).
        base: ratio of the longest wave to the shortest.
        dtype: of the table; float32 if None.

    Attributes:
        table: (max_len, d_model), sines at even features and cosines at odd ones; not part of the state.
    """

    table: Array

    def __init__(
        self,
        d_model: int,
        max_len: int = 5000,
        batch_first: bool = False,
        base: float = 10000.0,
        *,
        dtype: Any = None,
    ):
        _check(type(self).__name__, d_model, max_len)
        self.d_model, self.max_len, self.batch_first, self.base = d_model, max_len, batch_first, base
        self.register_buffer("table", empty((max_len, d_model), dtype), persistent=False)
        if not is_bounded():
            angles = _angles(d_model, max_len, base)
            self.table[:, 0::2], self.table[:, 1::2] = np.sin(angles), np.cos(angles)

    def forward(self, x: Operand) -> Tensor:
        """`x` (time, batch, d_model), or (time, d_model), with each place's encoding added."""
        rows = self.table[_places(self, x, self.d_model)].astype(x.dtype, copy=False)
        return x + _beside_batch(Tensor(rows), x, self.batch_first)  # type: ignore[return-value]

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.d_model}, max_len={self.max_len}"


class LearnedPositionalEncoding(Module):
    """Adds a trained vector for each place (Gehring et al., 2017; Devlin et al., 2019).

    Args:
        d_model: features.
        max_len: longest sequence.
        batch_first: (batch, time, d_model) instead of (time, batch, d_model).
        dtype: of the parameter; float32 if None.

    Attributes:
        weight: (max_len, d_model), normal with deviation 0.02, as BERT's.
    """

    weight: Parameter

    def __init__(self, d_model: int, max_len: int, batch_first: bool = False, *, dtype: Any = None):
        if d_model < 1 or max_len < 1:
            raise ArgumentError(
                f"LearnedPositionalEncoding needs positive sizes, not {d_model} and {max_len}"
            )
        self.d_model, self.max_len, self.batch_first = d_model, max_len, batch_first
        self.weight = Parameter(empty((max_len, d_model), dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        init.normal_(self.weight, std=0.02)

    def forward(self, x: Operand) -> Tensor:
        """`x` (time, batch, d_model), or (time, d_model), with each place's vector added."""
        rows = self.weight[_places(self, x, self.d_model)]
        return x + _beside_batch(rows, x, self.batch_first)  # type: ignore[return-value]

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.d_model}, max_len={self.max_len}"


class RotaryEmbedding(Module):
    """Turns each pair of features by an angle that grows with the place (RoPE, Su et al., arXiv:2104.09864).

    Applied to queries and keys, it makes their products depend on the distance of their places only. Pairs
    are neighbours, as in the paper.

    Args:
        dim: features of a head, an even number.
        max_len: longest sequence.
        base: ratio of the slowest rotation to the fastest.

    Attributes:
        phases: (max_len, dim / 2) complex numbers exp(i * angle); not part of the state.
    """

    phases: Array

    def __init__(self, dim: int, max_len: int = 2048, base: float = 10000.0):
        _check(type(self).__name__, dim, max_len)
        self.dim, self.max_len, self.base, self.batch_first = dim, max_len, base, True
        self.register_buffer("phases", empty((max_len, dim // 2), np.complex128), persistent=False)
        if not is_bounded():
            np.exp(1j * _angles(dim, max_len, base), out=self.phases)

    def forward(self, x: Operand, offset: int = 0) -> Tensor:
        """Turns `x` (..., time, dim), whose first place is number `offset` of its sequence."""
        return rotate_pairs(x, self.phases[_places(self, x, self.dim, offset)])

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"{self.dim}, max_len={self.max_len}"


def _check(name: str, width: int, max_len: int) -> None:
    if width < 2 or width % 2 or max_len < 1:
        raise ArgumentError(f"{name} needs an even number of features and places, not {width} and {max_len}")


def _angles(width: int, max_len: int, base: float) -> Array:
    """(max_len, width / 2): place * base ** (-2 i / width)."""
    return np.arange(max_len)[:, None] * base ** (-np.arange(0, width, 2) / width)


def _places(module: Any, x: Operand, width: int, offset: int = 0) -> slice:
    """Which rows of a table belong to `x`."""
    name = type(module).__name__
    if x.ndim < 2 or x.shape[-1] != width:
        raise ArgumentError(f"{name}: input must have {width} features and an axis of places, not {x.shape}")
    steps = x.shape[-2] if module.batch_first or x.ndim == 2 else x.shape[0]
    if offset < 0 or offset + steps > module.max_len:
        raise ArgumentError(
            f"{name}: places {offset} to {offset + steps - 1} do not fit max_len={module.max_len}"
        )
    return slice(offset, offset + steps)


def _beside_batch(rows: Tensor, x: Operand, batch_first: bool) -> Tensor:
    return rows if batch_first or x.ndim == 2 else rows.unsqueeze(1)
