"""Negative log-likelihood of log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops.labels import check_labels, from_rows, target_shape, to_rows, weighted_targets
from psframework.autograd.ops.loss import check_reduction
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array


@guarded("nll_loss")
def nll_loss(
    input: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood: minus the target's entry of each row of log-probabilities, along axis 1.

    Args:
        input: log-probabilities, as of `log_softmax`: (classes,), (batch, classes) or (batch, classes, ...).
        target: integers, () or (batch, ...).
        weight: (classes,), a constant factor of each class.
        ignore_index: examples of this class do not count.
        reduction: "mean" over the examples that count, each as much as its class's weight; nan if none does.
            "sum" or "none".
    """
    check_reduction("nll_loss", reduction)
    input = as_tensor(input, "nll_loss")
    labels: Array = target._data if isinstance(target, Tensor) else target
    data = input._data
    check_labels("nll_loss", data, labels)
    rows, xp = to_rows(data), backend.xp(data)
    targets = weighted_targets("nll_loss", labels, rows, weight, ignore_index)
    weights = targets.weights
    losses = xp.where(targets.valid, -rows.reshape(-1)[targets.places] * weights, 0)
    out = losses.reshape(target_shape(data)) if reduction == "none" else xp.add.reduce(losses)
    if reduction == "mean":
        with np.errstate(invalid="ignore"):  # nothing counts: the mean of nothing is nan
            out = out / targets.total
    out = backend.as_array(out).astype(data.dtype, copy=False)
    if not recording(input):
        return constant(out)
    shape, table, dtype = data.shape, rows.shape, data.dtype
    wide, divisor = rows.dtype, targets.divisor if reduction == "mean" else 1

    def rule(gradient: Array) -> Sequence[Array]:
        g = (gradient.reshape(-1) if reduction == "none" else gradient).astype(wide) / divisor
        into = xp.zeros(table, wide)
        into.reshape(-1)[targets.places] = -weights * g
        return (from_rows(into, shape, dtype),)

    return record("nll_loss", out, rule, (input,))
