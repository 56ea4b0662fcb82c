"""Batch normalization and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from psframework import backend
from psframework.autograd.record import as_tensor, constant, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


class Running(NamedTuple):
    """Statistics that a layer keeps; changed in place in training.

    Attributes:
        mean: (channels,).
        var: (channels,), unbiased.
    """

    mean: Array
    var: Array


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

    Raises:
        ArgumentError: shapes that do not fit, one value a channel in training, no statistics outside of it.
    """
    x = as_tensor(x, "batch_norm")
    weight = None if weight is None else as_tensor(weight, "batch_norm")
    bias = None if bias is None else as_tensor(bias, "batch_norm")
    _check(x, running, weight, bias, training)
    data = backend.widen(x._data)
    axes = (0, *range(2, data.ndim))
    across = (1, -1) + (1,) * (data.ndim - 2)
    count = data.size // max(data.shape[1], 1)
    if training:
        mean = data.mean(axis=axes)
        centred = data - mean.reshape(across)
        var = (centred * centred).mean(axis=axes)
        if running is not None:
            _move(running.mean, mean, momentum)
            _move(running.var, var * (count / (count - 1)), momentum)
    else:
        assert running is not None
        mean, var = running.mean.astype(data.dtype), running.var.astype(data.dtype)
        centred = data - mean.reshape(across)
    scale = (1 / (var + eps) ** 0.5).astype(data.dtype).reshape(across)
    normal = centred * scale
    factor = 1 if weight is None else backend.widen(weight._data).reshape(across)
    out = normal if weight is None else normal * factor
    if bias is not None:
        out = out + backend.widen(bias._data).reshape(across)
    out = out.astype(x.dtype, copy=False)
    if not recording(x, weight, bias):
        return constant(out)
    rule = _rule(_Saved(normal, scale, factor, axes, training), x, weight, bias)
    return record("batch_norm", out, rule, (x, weight, bias), (weight,))


class _Saved(NamedTuple):
    normal: Array
    scale: Array
    factor: Any
    axes: tuple[int, ...]
    training: bool


def _rule(saved: _Saved, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Any:
    normal, scale, factor, axes, training = saved
    needs = x._requires_grad, needs_grad(weight), needs_grad(bias)
    kinds = x.dtype, x.dtype if weight is None else weight.dtype, x.dtype if bias is None else bias.dtype

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = backend.widen(gradient)
        total = g.sum(axis=axes, keepdims=True)
        along = (g * normal).sum(axis=axes, keepdims=True)
        into_x = None
        if needs[0]:
            if training:
                count = g.size // max(total.size, 1)
                g = g - (total + normal * along) / max(count, 1)
            into_x = (g * (scale * factor)).astype(kinds[0], copy=False)
        return (
            into_x,
            along.reshape(-1).astype(kinds[1], copy=False) if needs[1] else None,
            total.reshape(-1).astype(kinds[2], copy=False) if needs[2] else None,
        )

    return rule


def _move(statistic: Array, value: Array, momentum: float) -> None:
    statistic *= 1 - momentum
    statistic += (value * momentum).astype(statistic.dtype)


def _check(
    x: Tensor, running: Running | None, weight: Tensor | None, bias: Tensor | None, training: bool
) -> None:
    if x.ndim < 2 or not backend.is_floating(x.dtype):
        raise ArgumentError(
            f"batch_norm: x must be floating, (batch, channels, ...), got {x.dtype} {x.shape}"
        )
    channels = (x.shape[1],)
    for what, shape in (
        ("weight", None if weight is None else weight.shape),
        ("bias", None if bias is None else bias.shape),
        ("running mean", None if running is None else running.mean.shape),
        ("running var", None if running is None else running.var.shape),
    ):
        if shape is not None and shape != channels:
            raise ArgumentError(f"batch_norm: {what} of shape {shape} for {channels[0]} channels")
    if training and x.size // max(x.shape[1], 1) < 2:
        raise ArgumentError(
            f"batch_norm: x of shape {x.shape} has fewer than two values a channel, so no variance: "
            "use a larger batch, or eval mode"
        )
    if not training and running is None:
        raise ArgumentError("batch_norm: outside of training running statistics are needed")


def dropout(x: Tensor | Array, p: float = 0.5, rng: Any = None, training: bool = True) -> Tensor:
    """Set elements to zero with probability `p`, and divide the others by `1 - p` (Srivastava et al., 2014).

    Args:
        x: any shape, floating.
        p: in [0, 1].
        rng: a `numpy.random.Generator` (on a GPU CuPy's), which decides what is dropped.
        training: if False, `x` passes unchanged.
    """
    if not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p={p} is no probability")
    x = as_tensor(x, "dropout")
    if not training or p == 0:
        return x
    if rng is None:
        raise ArgumentError("dropout: pass rng, a numpy.random.Generator, so that a run can be repeated")
    data = x._data
    if not backend.is_floating(data.dtype):
        raise ArgumentError(f"dropout: dtype {data.dtype} is not floating: convert with .astype(np.float32)")
    kept = rng.random(data.shape, dtype="float32") >= p
    mask = kept.astype(data.dtype) * data.dtype.type(1 / (1 - p) if p < 1 else 0)
    out = data * mask
    if not recording(x):
        return constant(out)
    return record("dropout", out, lambda g: (g * mask,), (x,))
