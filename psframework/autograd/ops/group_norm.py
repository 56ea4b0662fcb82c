"""Normalization of images over groups of channels. Images lie as (channel, row, column, image) inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from psframework import backend
from psframework.autograd.ops.norm import cast_to, floating, inverse_deviation, parameter, row_sums
from psframework.autograd.ops.windows import inside_out, outside_in
from psframework.autograd.record import constant, guarded, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("group_norm")
def group_norm(
    input: Tensor | Array,
    num_groups: int,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each group of channels of each image over its elements (Wu and He, 2018).

    Args:
        input: (batch, channels, ...), floating. 16-bit floats are computed in float32.
        num_groups: the channels are cut into this many groups.
        weight: (channels,) factor, or None for 1.
        bias: (channels,) summand, or None for 0.
        eps: added to the variance.

    Returns:
        Of the input's shape; its memory lies as (channels, ..., batch).

    Raises:
        ArgumentError: shapes that do not fit.
    """
    return _normalize("group_norm", input, num_groups, (weight, bias), eps)


@guarded("instance_norm")
def instance_norm(
    input: Tensor | Array,
    *,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of each image over its elements (Ulyanov et al., 2016); no running statistics.

    Args:
        input: (batch, channels, length) or (batch, channels, rows, columns), floating.
        weight: (channels,) factor, or None for 1.
        bias: (channels,) summand, or None for 0.
        eps: added to the variance.

    Raises:
        ArgumentError: shapes that do not fit.
    """
    if len(input.shape) < 3 or math.prod(input.shape[2:]) < 2:
        raise ArgumentError(
            f"instance_norm: input must be (batch, channels, ...) with two elements a channel, "
            f"got {input.shape}"
        )
    return _normalize("instance_norm", input, input.shape[1], (weight, bias), eps)


def _normalize(name: str, input: Tensor | Array, groups: int, factors: tuple[Any, Any], eps: float) -> Tensor:
    x = floating(name, input)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ArgumentError(
            f"{name}: input must be (batch, channels, ...) with channels divisible by {groups} group(s), "
            f"got {x.shape}"
        )
    weight, bias = (parameter(name, what, f, x.shape[1:2]) for what, f in zip(("weight", "bias"), factors))
    images = inside_out(backend.widen(x._data))
    # The elements of each group below each other, one image a column; lengths in full, for empty batches.
    columns = images.reshape(groups, math.prod(x.shape[1:]) // groups, len(x._data))
    xp = backend.xp(columns)
    normal = columns - _means(columns)
    out = xp.square(normal)
    scale = inverse_deviation(_means(out), eps)
    normal *= scale
    scaled, across = normal.reshape(images.shape), (-1,) + (1,) * (x.ndim - 1)
    out = out.reshape(images.shape)
    factor = None if weight is None else backend.widen(weight._data).reshape(across)
    xp.multiply(scaled, 1 if factor is None else factor, out=out)
    if bias is not None:
        out += backend.widen(bias._data).reshape(across)
    out = outside_in(cast_to(out, x.dtype))
    if not recording(x, weight, bias):
        return constant(out)
    rule = _rule(_Saved(normal, scale, factor), x, weight, bias)
    return record(name, out, rule, (x, weight, bias), (weight,))


def _means(columns: Array) -> Array:
    """(groups, 1, images): the mean of each column of (groups, elements, images)."""
    length = columns.shape[1]
    ones = backend.xp(columns).full((1, length), 1 / max(length, 1), columns.dtype)
    return cast(Array, ones @ columns)


class _Saved(NamedTuple):
    normal: Array  # (groups, elements, images)
    scale: Array  # (groups, 1, images)
    factor: Array | None  # (channels, 1, ...)


def _rule(
    saved: _Saved, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Callable[[Array], Sequence[Array | None]]:
    normal, scale, factor = saved
    needs = x._requires_grad, needs_grad(weight), needs_grad(bias)
    kinds = x.dtype, None if weight is None else weight.dtype, None if bias is None else bias.dtype
    inside, rows = (*x.shape[1:], x.shape[0]), (x.shape[1], math.prod(x.shape[2:]) * x.shape[0])

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = backend.xp(gradient).ascontiguousarray(inside_out(backend.widen(gradient)))
        along = g * normal.reshape(inside)
        into_weight = cast_to(row_sums(along.reshape(rows)), cast(Any, kinds[1])) if needs[1] else None
        into_bias = cast_to(row_sums(g.reshape(rows)), cast(Any, kinds[2])) if needs[2] else None
        if not needs[0]:
            return None, into_weight, into_bias
        if factor is not None:
            g = g * factor
            along *= factor
        into = g.reshape(normal.shape) - _means(g.reshape(normal.shape))
        into -= normal * _means(along.reshape(normal.shape))
        into *= scale
        return outside_in(cast_to(into, kinds[0]).reshape(inside)), into_weight, into_bias

    return rule
