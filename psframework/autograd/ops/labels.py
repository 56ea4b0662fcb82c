"""Integer targets of classification: checked, and as places in a table of one row an example."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psframework import backend
from psframework.autograd.ops.loss import constant_array
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


class Targets(NamedTuple):
    """Targets of `count` examples.

    Attributes:
        places: (count,) position of each target in the flat table of (count, classes); that of class 0 if
            the example is ignored.
        weights: (count,) weight of each example, 0 if ignored.
        total: sum of the weights, an array without axes.
        valid: (count,) whether the example counts.
    """

    places: Array
    weights: Array
    total: Array
    valid: Array

    @property
    def divisor(self) -> Any:
        """What gradients are divided by for the mean: where nothing counts they stay zeros."""
        return backend.xp(self.places).where(self.total == 0, 1, self.total)


def to_rows(data: Array) -> Array:
    """(classes,) or (batch, classes, ...) as a contiguous table of one row an example, not in 16 bits."""
    xp = backend.xp(data)
    if data.ndim == 1:
        data = data.reshape(1, -1)
    elif data.ndim > 2:
        data = xp.moveaxis(data, 1, -1).reshape(-1, data.shape[1])
    data = backend.widen(data)
    return data if data.flags.c_contiguous else xp.ascontiguousarray(data)


def from_rows(rows: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """The opposite of `to_rows`."""
    if len(shape) > 2:
        rows = backend.xp(rows).moveaxis(rows.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    elif len(shape) == 1:
        rows = rows.reshape(shape)
    return rows if rows.dtype == dtype else rows.astype(dtype)


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
    # Read without sign a negative label is huge: one look finds both kinds of bad ones.
    unsigned = labels.view(f"u{labels.itemsize}") if labels.dtype.kind == "i" else labels
    return bool(unsigned.max() < classes)


def weighted_targets(
    name: str, labels: Array, rows: Array, weight: Tensor | Array | None, ignore_index: int
) -> Targets:
    """Targets of which some may be ignored and which may be weighted by class.

    Args:
        name: of the loss.
        labels: integers, as many as `rows` has rows.
        rows: (count, classes).
        weight: (classes,), a constant; or None.
        ignore_index: a label whose examples do not count.
    """
    (count, classes), xp = rows.shape, backend.xp(rows)
    flat = labels.reshape(-1).astype(np.intp, copy=False)
    valid = flat != ignore_index
    flat = xp.where(valid, flat, 0)
    if (count and not classes) or not in_range(flat, classes):
        raise ArgumentError(
            f"{name}: targets from {flat.min()} to {flat.max()} for {classes} classes: "
            f"they must be in [0, {classes}), or {ignore_index} (ignore_index)"
        )
    by_class = constant_array(name, "weight", weight, rows.dtype)
    if by_class is None:
        weights = valid.astype(rows.dtype)
    elif by_class.shape != (classes,):
        raise ArgumentError(f"{name}: weight {by_class.shape} for {classes} classes: one weight for each")
    else:
        weights = by_class[flat] * valid
    places = xp.arange(0, count * classes, classes) + flat if count else flat
    return Targets(places, weights, xp.add.reduce(weights, None), valid)
