"""Softmax, its logarithm, and the logarithm of its denominator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops import fused
from psframework.autograd.ops.reduce import normal_axes, normal_axis
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Axis, Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def _prepare(name: str, x: Tensor | Array, axis: int) -> Tensor:
    """`x` as a tensor of floating dtype that has the axis."""
    x = as_tensor(x, name)
    data = x._data
    normal_axis(name, data.ndim, axis)
    if not backend.is_floating(data.dtype):
        raise ArgumentError(f"{name}: dtype {data.dtype} is not floating: convert with .astype(np.float32)")
    return x


def _shifted(data: Array, axis: int) -> Array:
    """Minus the maximum along `axis`, so that no exponential overflows; not in 16 bits."""
    wide = backend.widen(data)
    return wide - wide.max(axis, keepdims=True) if data.shape[axis] else wide


def softmax(x: Tensor | Array, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along `axis`. 16-bit floats are computed in float32."""
    x = _prepare("softmax", x, axis)
    if (kernels := backend.fused(x._data)) is not None and fused.along_rows(x._data, axis):
        return fused.softmax(kernels, x)
    shifted = _shifted(x._data, axis)
    xp, dtype = backend.xp(shifted), x._data.dtype
    out = xp.exp(shifted, out=shifted)
    out /= xp.add.reduce(out, axis, keepdims=True)
    if out.dtype != dtype:
        out = out.astype(dtype)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        weighted = backend.widen(gradient) * out
        weighted = weighted - out * xp.add.reduce(weighted, axis, keepdims=True)
        return (weighted if weighted.dtype == dtype else weighted.astype(dtype),)

    return record("softmax", out, rule, (x,), saves_output=True)


def log_softmax(x: Tensor | Array, axis: int = -1) -> Tensor:
    """x - log(sum(exp(x))) along `axis`. 16-bit floats are computed in float32."""
    x = _prepare("log_softmax", x, axis)
    if (kernels := backend.fused(x._data)) is not None and fused.along_rows(x._data, axis):
        return fused.log_softmax(kernels, x)
    shifted = _shifted(x._data, axis)
    xp, dtype = backend.xp(shifted), x._data.dtype
    if shifted.size:
        shifted -= xp.log(xp.add.reduce(xp.exp(shifted), axis, keepdims=True))
    out = shifted if shifted.dtype == dtype else shifted.astype(dtype)
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        wide = backend.widen(gradient)
        g = wide - xp.exp(backend.widen(out)) * xp.add.reduce(wide, axis, keepdims=True)
        return (g if g.dtype == dtype else g.astype(dtype),)

    return record("log_softmax", out, rule, (x,), saves_output=True)


def logsumexp(x: Tensor | Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis` (all by default), without overflow. 16-bit floats are computed in float32.

    Where all elements are -inf, or there are none, it is -inf, and their gradient is 0.
    """
    x = as_tensor(x, "logsumexp")
    data, dtype, shape = x._data, x._data.dtype, x._data.shape
    axes = normal_axes("logsumexp", len(shape), axis)
    if not backend.is_floating(dtype):
        raise ArgumentError(f"logsumexp: dtype {dtype} is not floating: convert with .astype(np.float32)")
    wide, xp = backend.widen(data), backend.xp(data)
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    top = xp.max(wide, axis=axes, keepdims=True) if wide.size else xp.zeros(kept, wide.dtype)
    top = xp.where(xp.isfinite(top), top, 0).astype(wide.dtype)
    with np.errstate(divide="ignore"):  # of the logarithm of 0
        total = backend.as_array(xp.log(xp.sum(xp.exp(wide - top), axis=axes, keepdims=True)) + top)
    out = total.astype(dtype, copy=False)
    if not keepdims:
        out = out.reshape([n for i, n in enumerate(shape) if i not in axes])
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        g = backend.widen(gradient).reshape(kept)
        g = g * xp.exp(wide - xp.where(total == -np.inf, 0, total).astype(wide.dtype))
        return (g if g.dtype == dtype else g.astype(dtype),)

    return record("logsumexp", out, rule, (x,), (x,), saves_output=True)
