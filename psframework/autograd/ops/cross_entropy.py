"""Cross-entropy of logits: softmax and negative log-likelihood in one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops import fused
from psframework.autograd.ops.labels import (
    check_labels,
    in_range,
    target_shape,
    to_table,
    weighted_targets,
)
from psframework.autograd.ops.loss import check_reduction, constant_array
from psframework.autograd.record import as_tensor, constant, explain, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError, PsfError


def cross_entropy(
    input: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Softmax and negative log-likelihood in one node, over axis 1.

    Args:
        input: logits, (classes,), (batch, classes) or (batch, classes, ...).
        target: classes: integers, () or (batch, ...); or probabilities: floats of the shape of `input`.
        weight: (classes,), a constant factor of each class.
        ignore_index: examples of this class do not count.
        reduction: "mean" over the examples that count, each as much as its class's weight (with
            probabilities over all examples); nan if none counts. "sum" or "none".
        label_smoothing: in [0, 1]: this share of each target is spread over all classes
            (Szegedy et al., arXiv:1512.00567).

    Returns:
        The loss: a scalar, or of the shape of the classes for "none".

    Raises:
        ArgumentError: shapes that do not fit, targets that are no class, an unknown reduction.
    """
    input = as_tensor(input, "cross_entropy")
    labels: Array = target._data if isinstance(target, Tensor) else target
    data = input._data
    try:
        check_reduction("cross_entropy", reduction)
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError(f"cross_entropy: label_smoothing {label_smoothing} is not in [0, 1]")
        if backend.is_array(labels) and backend.is_floating(labels.dtype):
            return _of_probabilities(
                input, as_tensor(target, "cross_entropy"), weight, ignore_index, reduction, label_smoothing
            )
        check_labels("cross_entropy", data, labels)
        kernels = backend.fused(data)
        if kernels is not None and weight is None and not label_smoothing and data.ndim > 1 and data.size:
            return fused.cross_entropy(kernels, input, labels, ignore_index, reduction)
        classes = data.shape[1] if data.ndim > 1 else len(data)
        if (
            data.ndim == 2
            and weight is None
            and not label_smoothing
            and not 0 <= ignore_index < classes
            and in_range(labels, classes)
        ):
            return _plain(input, labels, reduction)
        return _of_classes(input, labels, weight, ignore_index, reduction, label_smoothing)
    except PsfError:
        raise
    except (TypeError, ValueError, IndexError) as error:
        raise explain("cross_entropy", error, input, target, weight) from error


def _plain(input: Tensor, labels: Array, reduction: str) -> Tensor:
    """The usual case, quick for small arrays: (batch, classes), and every example counts alike."""
    data = input._data
    rows, xp = backend.widen(data), backend.xp(data)
    if not rows.flags.c_contiguous:
        rows = xp.ascontiguousarray(rows)
    count, classes = rows.shape
    places = xp.arange(0, count * classes, classes or 1) + labels.reshape(-1).astype(np.intp, copy=False)
    host = type(rows) is np.ndarray  # NumPy's method takes half as long again; CuPy has no `maximum.reduce`
    top = np.maximum.reduce(rows, 1, keepdims=True) if host else rows.max(1, keepdims=True)
    exponentials = rows - top
    picked = exponentials.reshape(-1)[places]
    xp.exp(exponentials, out=exponentials)
    sums = xp.add.reduce(exponentials, 1, keepdims=True)
    losses = xp.log(sums.reshape(-1)) - picked
    out: Array = losses.reshape(labels.shape) if reduction == "none" else xp.add.reduce(losses)
    if reduction == "mean":
        out = out / (count or np.nan)
    if rows.dtype != data.dtype:
        out = out.astype(data.dtype)
    if not recording(input):
        return constant(out)
    dtype = data.dtype

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = exponentials / sums
        g.reshape(-1)[places] -= 1
        gradient = backend.widen(gradient)
        g *= (
            gradient.reshape(-1, 1)
            if reduction == "none"
            else gradient / ((count or 1) if reduction == "mean" else 1)
        )
        return (g if g.dtype == dtype else g.astype(dtype),)

    return record("cross_entropy", out, rule, (input,))


def _of_classes(
    input: Tensor,
    labels: Array,
    weight: Tensor | Array | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Some examples may not count, classes may have weights, and targets may be spread over all classes."""
    data = input._data
    table, xp = to_table(data), backend.xp(data)
    targets = weighted_targets("cross_entropy", labels, table, weight, ignore_index)
    # The loss of an example is the sum over classes of q * (log(sum) - x); q has a part at the target,
    # `hard`, and one that all examples have alike, `spread`.
    hard = mass = targets.weights * (1 - smoothing)
    exponentials = table - _largest(table)
    losses, spread = -hard * exponentials.reshape(-1)[targets.positions], None
    if smoothing:
        spread = _spread(weight, table, smoothing)
        losses -= xp.matmul(spread, exponentials)
        mass = hard + xp.add.reduce(spread)
    xp.exp(exponentials, out=exponentials)
    sums = xp.add.reduce(exponentials, 1)
    losses = xp.where(targets.valid, losses + mass * xp.log(sums), 0)
    out = _reduced(losses, data, reduction, targets.total)
    if not recording(input):
        return constant(out)
    shape, dtype, divisor = data.shape, data.dtype, targets.divisor if reduction == "mean" else 1

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = exponentials * xp.expand_dims(mass / sums, 1)
        if spread is not None:
            g -= spread.reshape(-1, 1)
        g.reshape(-1)[targets.positions] -= hard
        factor = gradient.reshape(hard.shape) if reduction == "none" else gradient
        g *= xp.expand_dims(backend.widen(factor) / divisor * targets.valid, 1)
        return (g.reshape(shape).astype(dtype, copy=False),)

    return record("cross_entropy", out, rule, (input,))


def _spread(weight: Tensor | Array | None, table: Array, smoothing: float) -> Array:
    """What smoothing gives to each class, of every example."""
    classes = table.shape[1]
    by_class = constant_array("cross_entropy", "weight", weight, table.dtype)
    factors = backend.xp(table).ones(classes, table.dtype) if by_class is None else by_class
    return factors * (smoothing / classes)  # type: ignore[no-any-return]


def _of_probabilities(
    input: Tensor,
    target: Tensor,
    weight: Tensor | Array | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Targets that are distributions over the classes; they get a gradient too."""
    data = input._data
    if target.shape != data.shape or not data.ndim:
        raise ArgumentError(
            f"cross_entropy: logits {data.shape} need integers of shape {target_shape(data)} as targets, or "
            f"probabilities of shape {data.shape}, got {target.dtype} of shape {target.shape}"
        )
    if ignore_index >= 0:
        raise ArgumentError("cross_entropy: ignore_index goes with targets of integers, not probabilities")
    table, xp = to_table(data), backend.xp(data)
    shifted = table - _largest(table)
    exponentials = xp.exp(shifted)
    sums = xp.add.reduce(exponentials, 1, keepdims=True)
    by_class = constant_array("cross_entropy", "weight", weight, table.dtype)
    factor: Any = 1.0 if by_class is None else by_class.reshape(-1, 1)
    q = (to_table(target._data) * (1 - smoothing) + smoothing / table.shape[1]) * factor
    surprise = xp.log(sums) - shifted
    losses = xp.add.reduce(q * surprise, 1)
    out = _reduced(losses, data, reduction, losses.size or np.nan)
    if not recording(input, target):
        return constant(out)
    shape, kinds, count = data.shape, (data.dtype, target.dtype), losses.size or 1
    needs = input._requires_grad, target._requires_grad
    each = (len(table), 1, table.shape[2])
    surprise = surprise if needs[1] else None  # the rule holds what it reads, and not the logits

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = backend.widen(gradient) if reduction != "mean" else backend.widen(gradient) / count
        g = g.reshape(each) if reduction == "none" else g
        into_input = into_target = None
        if needs[0]:
            mass = xp.add.reduce(q, 1, keepdims=True)
            into_input = ((exponentials * (mass / sums) - q) * g).reshape(shape).astype(kinds[0], copy=False)
        if surprise is not None:
            into_target = surprise * ((1 - smoothing) * factor) * g
            into_target = into_target.reshape(shape).astype(kinds[1], copy=False)
        return into_input, into_target

    return record("cross_entropy", out, rule, (input, target))


def _largest(table: Array) -> Array:
    """The largest logit of each example: without it exponentials would overflow."""
    return table.max(1, keepdims=True)  # type: ignore[no-any-return]


def _reduced(losses: Array, data: Array, reduction: str, total: Any) -> Array:
    """Losses (batch, places) as the caller gets them, in the dtype of the logits."""
    out: Any = losses.reshape(target_shape(data)) if reduction == "none" else backend.xp(losses).sum(losses)
    if reduction == "mean":
        with np.errstate(invalid="ignore"):  # nothing counts: the mean of nothing is nan
            out = out / total
    return backend.as_array(out).astype(data.dtype, copy=False)
