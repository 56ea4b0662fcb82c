"""Padding: a border of a constant, or of the array's own elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.index import add_at
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Number, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Widths = int | Sequence[int] | Sequence[Sequence[int]]

# torch's names beside NumPy's.
_MODES = {
    "constant": "constant",
    "edge": "edge",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "wrap": "wrap",
    "replicate": "edge",
    "circular": "wrap",
}


@guarded("pad")
def pad(x: Tensor | Array, pad_width: Widths, mode: str = "constant", constant_values: Number = 0) -> Tensor:
    """`x` with a border around it; a gradient in the border is added to the element that it repeats.

    Args:
        x: any shape.
        pad_width: elements before and after each axis: one number, one pair, or a pair for each axis.
        mode: `constant`, `edge` (the last element; torch's `replicate`), `reflect` (mirrored about the last
            element), `symmetric` (mirrored, with the last element again) or `wrap` (torch's `circular`).
        constant_values: the number of mode `constant`.
    """
    x = as_tensor(x, "pad")
    widths = _pairs(pad_width, x.ndim)
    if mode not in _MODES:
        raise ArgumentError(f"pad: no mode {mode!r}: use one of {', '.join(_MODES)}")
    if _MODES[mode] == "constant":
        return _constant_border(x, widths, constant_values)
    if any(n == 0 and pair != (0, 0) for n, pair in zip(x.shape, widths)):
        raise ArgumentError(
            f"pad: an empty axis of shape {x.shape} has nothing to repeat: use mode 'constant'"
        )
    for axis, (before, after) in enumerate(widths):
        if before or after:
            # NumPy itself says which element goes where.
            source = np.pad(np.arange(x.shape[axis]), (before, after), _MODES[mode])  # type: ignore[call-overload]
            x = _repeated_border(x, axis, before, source)
    return x


def _pairs(pad_width: Widths, ndim: int) -> list[tuple[int, int]]:
    if not ndim:
        return []
    try:
        pairs = np.broadcast_to(np.asarray(pad_width), (ndim, 2))
    except ValueError as error:
        raise ArgumentError(f"pad: {pad_width} is no pair for each of {ndim} axes") from error
    if pairs.dtype.kind not in "iu" or (pairs < 0).any():
        raise ArgumentError(f"pad: widths are whole numbers from 0 on, got {pad_width}")
    return [(int(before), int(after)) for before, after in pairs]


def _constant_border(x: Tensor, widths: list[tuple[int, int]], value: Number) -> Tensor:
    data = x._data
    if not isinstance(value, int | float | np.generic):
        raise ArgumentError(f"pad: constant_values must be one number, not {value!r}")
    shape = tuple(n + before + after for n, (before, after) in zip(data.shape, widths))
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(data.shape, widths))
    out = backend.xp(data).full(shape, value, data.dtype)
    out[inside] = data
    return record("pad", out, lambda g: (g[inside],), (x,)) if recording(x) else constant(out)


def _repeated_border(x: Tensor, axis: int, before: int, source: Array) -> Tensor:
    data, n = x._data, x.shape[axis]
    lead: tuple[Any, ...] = (slice(None),) * axis
    out = data[(*lead, backend.array_like(source, data))]
    if not recording(x):
        return constant(out)
    inside = (*lead, slice(before, before + n))
    border = np.r_[0:before, before + n : len(source)]

    def rule(gradient: Array) -> Sequence[Array]:
        places, origins = backend.array_like(border, gradient), backend.array_like(source[border], gradient)
        wide = backend.widen(gradient)
        into = wide[inside].copy()
        add_at(into, (*lead, origins), wide[(*lead, places)])
        return (into.astype(gradient.dtype, copy=False),)

    return record("pad", out, rule, (x,))
