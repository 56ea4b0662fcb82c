"""Negative log-likelihood of log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops.labels import check_labels, target_shape, to_table, weighted_targets
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
    table, xp = to_table(data), backend.xp(data)
    targets = weighted_targets("nll_loss", labels, table, weight, ignore_index)
    positions, weights = targets.positions, targets.weights
    losses = xp.where(targets.valid, -table.reshape(-1)[positions] * weights, 0)
    out = losses.reshape(target_shape(data)) if reduction == "none" else xp.add.reduce(losses, None)
    if reduction == "mean":
        with np.errstate(invalid="ignore"):  # nothing counts: the mean of nothing is nan
            out = out / targets.total
    out = backend.as_array(out).astype(data.dtype, copy=False)
    if not recording(input):
        return constant(out)
    shape, dtype, wide = data.shape, data.dtype, table.dtype
    divisor = targets.divisor if reduction == "mean" else 1

    def rule(gradient: Array) -> Sequence[Array]:
        factor = gradient.reshape(weights.shape) if reduction == "none" else gradient
        into = xp.zeros(math.prod(shape), wide)
        into[positions] = -weights * (factor.astype(wide) / divisor)
        return (into.reshape(shape).astype(dtype, copy=False),)

    return record("nll_loss", out, rule, (input,))
