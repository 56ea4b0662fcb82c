"""Integer targets of classification: checked, and as positions in the table of logits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from psframework import backend
from psframework.autograd.ops.loss import constant_array
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


class Targets(NamedTuple):
    """Targets of a table (batch, classes, places), each of shape (batch, places).

    Attributes:
        positions: of each target in the flat table; that of class 0 if the example is ignored.
        weights: of each example, 0 if ignored.
        total: sum of the weights, an array without axes.
        valid: whether the example counts.
    """

    positions: Array
    weights: Array
    total: Array
    valid: Array

    @property
    def divisor(self) -> Any:
        """What gradients are divided by for the mean: where nothing counts they stay zeros."""
        return backend.xp(self.positions).where(self.total == 0, 1, self.total)


def to_table(data: Array) -> Array:
    """(classes,) or (batch, classes, ...) as (batch, classes, places), contiguous and not in 16 bits."""
    if data.ndim == 1:
        table = data.reshape(1, -1, 1)
    else:
        table = data.reshape(*data.shape[:2], math.prod(data.shape[2:]))
    return backend.xp(data).ascontiguousarray(backend.widen(table))  # type: ignore[no-any-return]


def target_shape(data: Array) -> tuple[int, ...]:
    """Shape of the targets for logits (classes,) or (batch, classes, ...)."""
    return data.shape[:1] + data.shape[2:] if data.ndim > 1 else ()


def check_labels(name: str, data: Array, labels: Any) -> None:
    """Refuses targets of another dtype or shape than the logits need."""
    shape = target_shape(data)
    if not backend.is_array(labels) or labels.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name}: targets must be an array of integers, one class for each example (shape {shape})"
        )
    if not data.ndim or labels.shape != shape:
        raise ArgumentError(f"{name}: logits {data.shape} need targets of shape {shape}, got {labels.shape}")


def in_range(labels: Array, classes: int) -> bool:
    """Whether all labels are in [0, classes)."""
    if not labels.size:
        return True
    if labels.dtype.kind != "i":
        return bool(labels.max() < classes)
    # Read without sign a negative label is larger than any other: one look finds both kinds of bad ones.
    unsigned = labels.view(labels.dtype.str.replace("i", "u"))
    return bool(unsigned.max() < min(classes, 1 << (8 * labels.itemsize - 1)))


def weighted_targets(
    name: str, labels: Array, table: Array, weight: Tensor | Array | None, ignore_index: int
) -> Targets:
    """Targets of which some may be ignored and which may be weighted by class.

    Args:
        name: of the loss.
        labels: integers, one for each example of the table.
        table: (batch, classes, places).
        weight: (classes,), a constant; or None.
        ignore_index: a label whose examples do not count.
    """
    (count, classes, places), xp = table.shape, backend.xp(table)
    labels = labels.reshape(count, places).astype(np.intp, copy=False)
    valid = labels != ignore_index
    labels = xp.where(valid, labels, 0)
    if (labels.size and not classes) or not in_range(labels, classes):
        raise ArgumentError(
            f"{name}: targets from {labels.min()} to {labels.max()} for {classes} classes: "
            f"they must be in [0, {classes}), or {ignore_index} (ignore_index)"
        )
    by_class = constant_array(name, "weight", weight, table.dtype)
    if by_class is None:
        weights = valid.astype(table.dtype)
    elif by_class.shape != (classes,):
        raise ArgumentError(f"{name}: weight {by_class.shape} for {classes} classes: one weight for each")
    else:
        weights = by_class[labels] * valid
    positions = labels * places + xp.arange(places)
    positions += xp.arange(count).reshape(-1, 1) * (classes * places)
    return Targets(positions, weights, xp.add.reduce(weights, None), valid)
