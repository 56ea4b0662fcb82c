"""Cross-entropy of logits: softmax and negative log-likelihood in one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops import fused
from psframework.autograd.ops.labels import (
    check_labels,
    from_rows,
    in_range,
    target_shape,
    to_rows,
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
            weight is None
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
    """Every example counts, and counts alike."""
    data = input._data
    rows, xp = to_rows(data), backend.xp(data)
    count, classes = rows.shape
    places = xp.arange(0, count * classes, classes or 1) + labels.reshape(-1).astype(np.intp, copy=False)
    exponentials = rows - rows.max(1, keepdims=True)
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
    shape, dtype = data.shape, data.dtype

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = exponentials / sums
        g.reshape(-1)[places] -= 1
        gradient = backend.widen(gradient)
        g *= (
            gradient.reshape(-1, 1)
            if reduction == "none"
            else gradient / ((count or 1) if reduction == "mean" else 1)
        )
        return (g if len(shape) == 2 and g.dtype == dtype else from_rows(g, shape, dtype),)

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
    rows, xp = to_rows(data), backend.xp(data)
    targets = weighted_targets("cross_entropy", labels, rows, weight, ignore_index)
    shifted, exponentials, sums = _exponentials(rows)
    log_sums = xp.log(sums.reshape(-1))
    # The loss of an example is the sum over classes of q * (log(sum) - x); q has a part at the target,
    # `hard`, and one that all examples have alike, `spread`.
    hard = targets.weights * (1 - smoothing)
    losses = hard * (log_sums - shifted.reshape(-1)[targets.places])
    mass, spread = hard, None
    if smoothing:
        by_class = constant_array("cross_entropy", "weight", weight, rows.dtype)
        spread = (xp.ones(rows.shape[1], rows.dtype) if by_class is None else by_class) * (
            smoothing / rows.shape[1]
        )
        whole = xp.add.reduce(spread)
        losses = losses + (whole * log_sums - shifted @ spread)
        mass = hard + whole * targets.valid
    losses = xp.where(targets.valid, losses, 0)
    out = _reduced(losses, target_shape(data), reduction, targets.total)
    out = backend.as_array(out).astype(data.dtype, copy=False)
    if not recording(input):
        return constant(out)
    shape, dtype, divisor = data.shape, data.dtype, targets.divisor if reduction == "mean" else 1

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = exponentials * (mass.reshape(-1, 1) / sums)
        if spread is not None:
            g -= targets.valid.reshape(-1, 1) * spread
        g.reshape(-1)[targets.places] -= hard
        g *= backend.widen(gradient.reshape(-1, 1) if reduction == "none" else gradient) / divisor
        return (from_rows(g, shape, dtype),)

    return record("cross_entropy", out, rule, (input,))


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
    rows, chances, xp = to_rows(data), to_rows(target._data), backend.xp(data)
    shifted, exponentials, sums = _exponentials(rows)
    by_class = constant_array("cross_entropy", "weight", weight, rows.dtype)
    factor: Any = 1.0 if by_class is None else by_class
    q = (chances * (1 - smoothing) + smoothing / rows.shape[1]) * factor
    surprise = xp.log(sums) - shifted
    losses = xp.add.reduce(q * surprise, 1)
    out = _reduced(losses, target_shape(data), reduction, len(rows) or np.nan)
    out = backend.as_array(out).astype(data.dtype, copy=False)
    if not recording(input, target):
        return constant(out)
    shape, kinds, count = (
        data.shape,
        (data.dtype, target.dtype),
        (len(rows) or 1) if reduction == "mean" else 1,
    )
    needs = input._requires_grad, target._requires_grad

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = (gradient.reshape(-1, 1) if reduction == "none" else gradient).astype(rows.dtype) / count
        into_input = into_target = None
        if needs[0]:
            mass = xp.add.reduce(q, 1, keepdims=True)
            into_input = from_rows((exponentials * (mass / sums) - q) * g, shape, kinds[0])
        if needs[1]:
            into_target = from_rows(surprise * ((1 - smoothing) * factor) * g, shape, kinds[1])
        return into_input, into_target

    return record("cross_entropy", out, rule, (input, target))


def _exponentials(rows: Array) -> tuple[Array, Array, Array]:
    """The rows minus their maximum, the exponentials of that, and their sums."""
    xp = backend.xp(rows)
    shifted = rows - rows.max(1, keepdims=True)
    exponentials = xp.exp(shifted)
    return shifted, exponentials, xp.add.reduce(exponentials, 1, keepdims=True)


def _reduced(losses: Array, shape: tuple[int, ...], reduction: str, total: Any) -> Any:
    if reduction == "none":
        return losses.reshape(shape)
    out = backend.xp(losses).add.reduce(losses)
    with np.errstate(invalid="ignore"):  # nothing counts: the mean of nothing is nan
        return out / total if reduction == "mean" else out
