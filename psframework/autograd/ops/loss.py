"""Losses, each one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean") -> Tensor:
    """Softmax and negative log-likelihood in one node, over axis 1.

    Args:
        input: (batch, classes) or (batch, classes, ...), floating.
        target: (batch,) or (batch, ...), integers in [0, classes).
        reduction: "mean", "sum" or "none".

    Returns:
        The loss: a scalar, or of the shape of `target` for "none".

    Raises:
        ArgumentError: shapes that do not fit, targets that are no class, an unknown reduction.
    """
    input = as_tensor(input, "cross_entropy")
    labels: Array = target._data if isinstance(target, Tensor) else target
    data = input._data
    _check(data, labels, reduction)
    # One row an example, classes last, contiguous so that a place in it is one number.
    rows = data if data.ndim == 2 else np.moveaxis(data, 1, -1).reshape(labels.size, data.shape[1])
    rows, xp = backend.widen(rows), backend.xp(data)
    if not rows.flags.c_contiguous:
        rows = xp.ascontiguousarray(rows)
    count, classes = rows.shape
    places = xp.arange(0, count * classes, classes) + labels.reshape(-1).astype(np.intp, copy=False)
    exponentials = rows - xp.maximum.reduce(rows, 1, keepdims=True)
    picked = exponentials.reshape(-1)[places]
    xp.exp(exponentials, out=exponentials)
    sums = xp.add.reduce(exponentials, 1, keepdims=True)
    losses = xp.log(sums.reshape(-1)) - picked
    out: Array = losses.reshape(labels.shape) if reduction == "none" else xp.add.reduce(losses)
    if reduction == "mean":
        out = out / count
    if rows.dtype != data.dtype:
        out = out.astype(data.dtype)
    if not recording(input):
        return constant(out)
    shape, dtype = data.shape, data.dtype

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = exponentials / sums
        g.reshape(-1)[places] -= 1
        g *= (
            gradient.reshape(-1, 1)
            if reduction == "none"
            else gradient / (count if reduction == "mean" else 1)
        )
        if len(shape) != 2:
            g = np.moveaxis(g.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
        return (g if g.dtype == dtype else g.astype(dtype),)

    return record("cross_entropy", out, rule, (input,))


def _check(data: Array, labels: Array, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"cross_entropy: reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    if not backend.is_array(labels) or labels.dtype.kind not in "iu":
        raise ArgumentError("cross_entropy: targets must be an array of integers, one class for each example")
    if data.ndim < 2 or labels.shape != data.shape[:1] + data.shape[2:]:
        raise ArgumentError(
            f"cross_entropy: logits {data.shape} need targets of shape {data.shape[:1] + data.shape[2:]}, "
            f"got {labels.shape}"
        )
    # Read without sign a negative label is huge: one look finds both kinds of bad ones.
    unsigned = labels.view(f"u{labels.itemsize}") if labels.dtype.kind == "i" else labels
    if labels.size and backend.xp(unsigned).maximum.reduce(unsigned, None) >= data.shape[1]:
        raise ArgumentError(
            f"cross_entropy: targets from {labels.min()} to {labels.max()} for {data.shape[1]} classes: "
            f"they must be in [0, {data.shape[1]})"
        )


def mse_loss(input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean") -> Tensor:
    """Squared error.

    Args:
        input: any shape, floating.
        target: the same shape: a loss that broadcasts is nearly always a mistake.
        reduction: "mean", "sum" or "none".
    """
    input, target = as_tensor(input, "mse_loss"), as_tensor(target, "mse_loss")
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"mse_loss: reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    if input.shape != target.shape:
        raise ArgumentError(f"mse_loss: input {input.shape} and target {target.shape} differ in shape")
    difference = input._data - target._data
    kinds = input.dtype, target.dtype
    needs = input._requires_grad, target._requires_grad
    wide = backend.widen(backend.as_array(difference))
    squares = wide * wide
    out = squares if reduction == "none" else squares.sum()
    scale = 2 / wide.size if reduction == "mean" and wide.size else 2
    if reduction == "mean":
        out = out / wide.size
    out = backend.as_array(out).astype(difference.dtype)
    if not recording(input, target):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = wide * (gradient * scale)
        return (
            g.astype(kinds[0], copy=False) if needs[0] else None,
            (-g).astype(kinds[1], copy=False) if needs[1] else None,
        )

    return record("mse_loss", out, rule, (input, target))
