"""Normalization over the last axes: by mean and deviation, or by the root of the mean square."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from psframework import backend
from psframework.autograd.ops import fused
from psframework.autograd.ops.norm import cast_to, floating, inverse_deviation, parameter, row_means
from psframework.autograd.record import constant, guarded, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Shape: TypeAlias = int | Sequence[int]


@guarded("layer_norm")
def layer_norm(
    input: Tensor | Array,
    normalized_shape: Shape,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the last axes, times weight plus bias (Ba et al., 2016).

    Args:
        input: (..., *normalized_shape), floating. 16-bit floats are computed in float32.
        normalized_shape: lengths of the axes to normalize over.
        weight: normalized_shape, factor of each element; or None.
        bias: normalized_shape, summand of each element; or None.
        eps: added to the variance.

    Raises:
        ArgumentError: shapes that do not fit.
    """
    return _normalize("layer_norm", input, normalized_shape, weight, bias, eps)


@guarded("rms_norm")
def rms_norm(
    input: Tensor | Array,
    normalized_shape: Shape,
    weight: Tensor | Array | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean of squares + eps) over the last axes, times weight (Zhang and Sennrich, 2019).

    Args:
        input: (..., *normalized_shape), floating. 16-bit floats are computed in float32.
        normalized_shape: lengths of the axes to normalize over.
        weight: normalized_shape, factor of each element; or None.
        eps: added to the mean; None for the spacing of numbers at 1 in the dtype computed in.

    Raises:
        ArgumentError: shapes that do not fit.
    """
    return _normalize("rms_norm", input, normalized_shape, weight, None, eps)


def _normalize(
    name: str,
    input: Tensor | Array,
    normalized_shape: Shape,
    weight: Tensor | Array | None,
    bias: Tensor | Array | None,
    eps: float | None,
) -> Tensor:
    x = floating(name, input)
    shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ArgumentError(f"{name}: input of shape {x.shape} does not end in normalized_shape={shape}")
    weight, bias = parameter(name, "weight", weight, shape), parameter(name, "bias", bias, shape)
    length = math.prod(shape)
    if x.size and (kernels := backend.fused(x._data)) is not None:
        return fused.row_norm(kernels, name, (x, weight, bias), length, eps)
    # The number of rows in full: -1 is undefined for an empty batch.
    rows = backend.widen(x._data).reshape(math.prod(x.shape[: -len(shape)]), length)
    factor = None if weight is None else backend.widen(weight._data).reshape(length)
    normal, scale, out = _forward(rows, name == "layer_norm", eps)
    if factor is None:
        out[...] = normal
    else:
        backend.xp(rows).multiply(normal, factor, out=out)
    if bias is not None:
        out += backend.widen(bias._data).reshape(length)
    out = cast_to(out, x.dtype).reshape(x.shape)
    if not recording(x, weight, bias):
        return constant(out)
    saved = _Saved(normal, scale, factor, name == "layer_norm")
    return record(name, out, _rule(saved, x, weight, bias), (x, weight, bias), (weight,))


def _forward(rows: Array, centred: bool, eps: float | None) -> tuple[Array, Array, Array]:
    """The rows normalized, the factor of each row, and an array of the same shape to write to."""
    xp = backend.xp(rows)
    normal = rows - row_means(rows) if centred else rows
    free = xp.square(normal)
    scale = inverse_deviation(row_means(free), float(xp.finfo(rows.dtype).eps) if eps is None else eps)
    return xp.multiply(normal, scale, out=normal if centred else None), scale, free


class _Saved(NamedTuple):
    normal: Array  # (rows, length)
    scale: Array  # (rows, 1)
    factor: Array | None  # (length,)
    centred: bool


def _rule(
    saved: _Saved, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Callable[[Array], Sequence[Array | None]]:
    needs = x._requires_grad, needs_grad(weight), needs_grad(bias)
    shape, dtype = x.shape, x.dtype
    like_weight, like_bias = _like(weight), _like(bias)

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = backend.widen(gradient).reshape(saved.normal.shape)
        ones = backend.xp(g).ones((1, len(g)), g.dtype)
        along = g * saved.normal
        into_weight = cast_to(ones @ along, like_weight[1]).reshape(like_weight[0]) if needs[1] else None
        into_bias = cast_to(ones @ g, like_bias[1]).reshape(like_bias[0]) if needs[2] else None
        into_x = cast_to(_into_rows(saved, g, along), dtype).reshape(shape) if needs[0] else None
        return into_x, into_weight, into_bias

    return rule


def _like(value: Tensor | None) -> tuple[tuple[int, ...], Any]:
    return ((), None) if value is None else (value.shape, value.dtype)


def _into_rows(saved: _Saved, g: Array, along: Array) -> Array:
    """The gradient of the rows, from that of the result, and that times the normalized rows (overwritten)."""
    normal, scale, factor, centred = saved
    xp, length = backend.xp(g), max(g.shape[1], 1)
    weights = xp.full((g.shape[1], 1), 1 / length, g.dtype) if factor is None else factor[:, None] / length
    back = normal * (along @ weights)
    if centred:
        back += g @ weights
    into = xp.multiply(g, 1 if factor is None else factor, out=along)
    into -= back
    into *= scale
    return cast(Array, into)
