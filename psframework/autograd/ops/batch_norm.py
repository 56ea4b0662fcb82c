"""Batch normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from psframework import backend
from psframework.autograd.ops import fused
from psframework.autograd.ops.norm import cast_to, floating, inverse_deviation, parameter, row_means, row_sums
from psframework.autograd.ops.windows import inside_out, outside_in
from psframework.autograd.recompute import is_recomputing
from psframework.autograd.record import constant, guarded, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.backend.kernels.batch_norm import LIMIT
from psframework.errors import ArgumentError


class Running(NamedTuple):
    """Statistics that a layer keeps; changed in place in training.

    Attributes:
        mean: (channels,).
        var: (channels,), unbiased.
    """

    mean: Array
    var: Array


@guarded("batch_norm")
def batch_norm(
    x: Tensor | Array,
    running: Running | None,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel (axis 1) over all other axes (Ioffe and Szegedy, 2015), as torch does.

    Args:
        x: (batch, channels, ...), floating. 16-bit floats are computed in float32.
        running: statistics; in training they move by `momentum` towards the batch's, else they are used.
        weight: (channels,) factor, or None for 1.
        bias: (channels,) summand, or None for 0.
        training: normalize by the batch's own statistics.
        momentum: weight of the batch in the running statistics.
        eps: added to the variance.

    Returns:
        Of the shape of `x`; where `x` has more than two axes its memory lies as (channels, ..., batch).

    Raises:
        ArgumentError: shapes that do not fit, one value a channel in training, no statistics outside of it.
    """
    x = floating("batch_norm", x)
    _check(x, running, training)
    weight = parameter("batch_norm", "weight", weight, x.shape[1:2])
    bias = parameter("batch_norm", "bias", bias, x.shape[1:2])
    if 0 < x.size < LIMIT and (kernels := backend.fused(x._data)) is not None:
        known = None if training or running is None else (running.mean, running.var)
        result, *found = fused.batch_norm(kernels, (x, weight, bias), known, eps)
        if training and running is not None:
            _follow(running, found[0][:, None], found[1][:, None], x.size // x.shape[1], momentum)
        return result
    images = inside_out(backend.widen(x._data))
    # One channel a row; the lengths in full, because -1 is undefined for an empty batch.
    rows = images.reshape(len(images), math.prod(images.shape[1:]))
    if training:
        mean, centred, variance, out = _statistics(rows)
        if running is not None:
            _follow(running, mean, variance, rows.shape[1], momentum)
    else:
        assert running is not None
        mean, variance = (statistic.astype(rows.dtype)[:, None] for statistic in running)
        centred, out = rows - mean, None
    scale = inverse_deviation(variance, eps)
    factor = scale if weight is None else scale * backend.widen(weight._data)[:, None]
    out = backend.xp(rows).multiply(centred, factor, out=out)
    if bias is not None:
        out += backend.widen(bias._data)[:, None]
    out = outside_in(cast_to(out, x.dtype).reshape(images.shape))
    if not recording(x, weight, bias):
        return constant(out)
    rule = _rule(_Saved(centred, scale, factor, training), x, weight, bias)
    return record("batch_norm", out, rule, (x, weight, bias), (weight,))


def _statistics(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Means, the rows without them, variances, and an array like the rows to write to."""
    mean = row_means(rows)
    centred = rows - mean
    squares = backend.xp(rows).square(centred)
    return mean, centred, row_means(squares), squares


def _follow(running: Running, mean: Array, variance: Array, count: int, momentum: float) -> None:
    if is_recomputing():
        return  # this batch has been counted
    _move(running.mean, mean, momentum)
    _move(running.var, variance * (count / (count - 1)), momentum)


def _move(statistic: Array, value: Array, momentum: float) -> None:
    statistic *= 1 - momentum
    statistic += (value[:, 0] * momentum).astype(statistic.dtype)


class _Saved(NamedTuple):
    centred: Array  # (channels, elements)
    scale: Array  # (channels, 1)
    factor: Array  # the same, times the weight
    training: bool


def _rule(
    saved: _Saved, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Callable[[Array], Sequence[Array | None]]:
    centred, scale, factor, training = saved
    needs = x._requires_grad, needs_grad(weight), needs_grad(bias)
    kinds = x.dtype, None if weight is None else weight.dtype, None if bias is None else bias.dtype
    shape = (*x.shape[1:], len(x._data))

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = inside_out(backend.widen(gradient)).reshape(centred.shape)
        product = g * centred
        total, along = row_sums(g), row_sums(product) * scale[:, 0]
        into_x = None
        if needs[0]:
            into = backend.xp(g).multiply(g, factor, out=product)
            if training:
                share = factor / centred.shape[1]
                back = centred * (share * scale * along[:, None])
                back += share * total[:, None]
                into -= back
            into_x = outside_in(cast_to(into, kinds[0]).reshape(shape))
        return (
            into_x,
            cast_to(along, cast(Any, kinds[1])) if needs[1] else None,
            cast_to(total, cast(Any, kinds[2])) if needs[2] else None,
        )

    return rule


def _check(x: Tensor, running: Running | None, training: bool) -> None:
    if x.ndim < 2:
        raise ArgumentError(f"batch_norm: x must be (batch, channels, ...), got {x.shape}")
    channels = x.shape[1:2]
    if running is not None and not running.mean.shape == running.var.shape == channels:
        raise ArgumentError(
            f"batch_norm: running statistics must have shape {channels}, "
            f"got {running.mean.shape} and {running.var.shape}"
        )
    if training and x.size // max(x.shape[1], 1) < 2:
        raise ArgumentError(
            f"batch_norm: x of shape {x.shape} has fewer than two values a channel, so no variance: "
            "use a larger batch, or eval mode"
        )
    if not training and running is None:
        raise ArgumentError("batch_norm: outside of training running statistics are needed")
