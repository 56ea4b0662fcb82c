"""Operations by the fused kernels of a GPU (`backend.fused`): one pass where NumPy's way takes several.

The operations themselves check their arguments and come here if `backend.fused(array)` has kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.record import constant, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.backend.kernels import Kernels
from psframework.backend.kernels.source import compute_dtype


def along_rows(data: Array, axis: int) -> bool:
    """Whether kernels over rows can work along `axis`: the last one."""
    return bool(data.ndim and data.size and axis in (-1, data.ndim - 1))


def softmax(kernels: Kernels, x: Tensor) -> Tensor:
    """Softmax along the last axis."""
    out = kernels.softmax(x._data)
    if not recording(x):
        return constant(out)
    return record(
        "softmax", out, lambda g: (kernels.softmax_gradient(_in(g, out.dtype), out),), (x,), saves_output=True
    )


def log_softmax(kernels: Kernels, x: Tensor) -> Tensor:
    """The logarithm of softmax along the last axis."""
    out = kernels.log_softmax(x._data)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        return (kernels.log_softmax_gradient(_in(gradient, out.dtype), out),)

    return record("log_softmax", out, rule, (x,), saves_output=True)


def gelu(kernels: Kernels, x: Tensor, approximate: str) -> Tensor:
    """Gelu, exact ("none") or by "tanh"."""
    data = x._data
    out = kernels.gelu(data, approximate)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        return (kernels.gelu_gradient(_in(gradient, data.dtype), data, approximate),)

    return record("gelu", out, rule, (x,), (x,))


def cross_entropy(kernels: Kernels, x: Tensor, labels: Array, ignored: int, reduction: str) -> Tensor:
    """Cross-entropy of labels without weights or smoothing. A label that is no class gives nan.

    Args:
        kernels: of the array's device.
        x: (batch, classes) or (batch, classes, ...).
        labels: (batch,) or (batch, ...), integers.
        ignored: examples with this label do not count.
        reduction: "mean", "sum" or "none".
    """
    data, xp = x._data, backend.xp(x._data)
    moved = xp.moveaxis(data, 1, -1)
    rows = kernels.contiguous(moved.reshape(labels.size, data.shape[1]))
    flat = kernels.contiguous(labels.reshape(-1).astype(np.int64, copy=False))
    losses, *saved = kernels.cross_entropy(rows, flat, ignored)
    count = xp.add.reduce((flat != ignored).astype(losses.dtype)) if reduction == "mean" else None
    out = losses.reshape(labels.shape) if reduction == "none" else xp.add.reduce(losses)
    out = (out if count is None else out / count).astype(data.dtype, copy=False)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        scales = _in(gradient, losses.dtype)
        if count is not None:
            scales = scales / xp.maximum(count, 1)
        scales = kernels.contiguous(scales.reshape(-1))
        g = kernels.cross_entropy_gradient(rows, flat, (saved[0], saved[1]), scales, ignored)
        return (xp.moveaxis(g.reshape(moved.shape), -1, 1),)

    return record("cross_entropy", out, rule, (x,), (x,))


def row_norm(
    kernels: Kernels,
    name: str,
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    length: int,
    eps: float | None,
) -> Tensor:
    """Layer norm or RMS norm over the last `length` elements.

    Args:
        kernels: of the array's device.
        name: "layer_norm" or "rms_norm".
        inputs: x, weight and bias.
        length: elements of what is normalized together.
        eps: added to the variance; None for the spacing of numbers at 1.
    """
    x, weight, bias = inputs
    centred, dtype = name == "layer_norm", x.dtype
    rows = kernels.contiguous(x._data.reshape(x.size // length, length))
    factor, summand = _vector(kernels, weight, length), _vector(kernels, bias, length)
    eps = float(np.finfo(compute_dtype(dtype)).eps) if eps is None else eps
    out, *saved = kernels.layer_norm(rows, factor, summand, eps, centred)
    out = out.reshape(x.shape)
    if not recording(*inputs):
        return constant(out)
    shape, statistics = x.shape, (saved[0], saved[1])
    needs = x._requires_grad, needs_grad(weight), needs_grad(bias)
    finish = _finisher(weight), _finisher(bias)

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = kernels.contiguous(_in(gradient, dtype).reshape(rows.shape))
        along = total = None
        if needs[1] or needs[2]:
            along, total = kernels.layer_norm_columns(g, rows, statistics)
        into = kernels.layer_norm_gradient(g, rows, factor, statistics, centred) if needs[0] else None
        return (
            None if into is None else into.reshape(shape),
            finish[0](along) if needs[1] else None,
            finish[1](total) if needs[2] else None,
        )

    return record(name, out, rule, inputs, (x, weight))


def batch_norm(
    kernels: Kernels,
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    statistics: tuple[Array, Array] | None,
    eps: float,
) -> tuple[Tensor, Array, Array]:
    """Batch norm over axis 1.

    Args:
        kernels: of the array's device.
        inputs: x (batch, channels, ...), weight and bias.
        statistics: mean and variance to normalize by; None for those of `x`.
        eps: added to the variance.

    Returns:
        The result; mean and variance (divided by the count) of each channel.
    """
    x, weight, bias = inputs
    training, dtype, channels = statistics is None, x.dtype, x.shape[1]
    images = kernels.contiguous(x._data.reshape(x.shape[0], channels, math.prod(x.shape[2:])))
    if statistics is None:
        means, variances = kernels.batch_statistics(images)
    else:
        wide = compute_dtype(dtype)
        means, variances = (kernels.contiguous(_in(statistic, wide)) for statistic in statistics)
    xp = backend.xp(means)
    scales = 1 / xp.sqrt(variances + means.dtype.type(eps))
    factor, summand = _vector(kernels, weight, channels), _vector(kernels, bias, channels)
    factors = scales if factor is None else scales * factor
    out = kernels.batch_norm(images, means, factors, xp.zeros_like(means) if summand is None else summand)
    out = out.reshape(x.shape)
    if not recording(*inputs):
        return constant(out), means, variances
    shape = x.shape
    needs = x._requires_grad, needs_grad(weight), needs_grad(bias)
    finish = _finisher(weight), _finisher(bias)

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = _in(gradient, dtype).reshape(images.shape)
        into, along, total = kernels.batch_norm_gradient(g, images, (means, scales, factors), training)
        return (
            into.reshape(shape) if needs[0] else None,
            finish[0](along) if needs[1] else None,
            finish[1](total) if needs[2] else None,
        )

    return record("batch_norm", out, rule, inputs, (x, weight)), means, variances


def _finisher(value: Tensor | None) -> Any:
    """What gives a vector of the kernels the shape and dtype of the tensor that it is the gradient of."""
    if value is None:
        return None
    shape, dtype = value.shape, value.dtype
    return lambda vector: _in(vector, dtype).reshape(shape)


def _in(array: Array, dtype: DType) -> Array:
    return array if array.dtype == dtype else array.astype(dtype)


def _vector(kernels: Kernels, value: Tensor | None, length: int) -> Array | None:
    """A factor or summand as the kernels take it."""
    return None if value is None else kernels.contiguous(backend.widen(value._data).reshape(length))
