"""Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.arithmetic import multiply
from psframework.autograd.random_state import replayable
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def dropout(x: Tensor | Array, p: float = 0.5, rng: Any = None, training: bool = True) -> Tensor:
    """Set elements to zero with probability `p`, and divide the others by `1 - p` (Srivastava et al., 2014).

    Args:
        x: any shape, floating.
        p: in [0, 1].
        rng: a `numpy.random.Generator`, or CuPy's on a GPU; it decides what is dropped.
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
    # A generator of the host's draws for any device: the same run everywhere.
    kept = backend.array_like(replayable(rng).random(data.shape, dtype="float32") >= p, data)
    wide = backend.widen(data)
    # In bfloat16 1 / 0.9 would be 0.2 % too small.
    mask = kept.astype(wide.dtype) * wide.dtype.type(1 / (1 - p) if p < 1 else 0)
    out = (wide * mask).astype(data.dtype, copy=False)
    if not recording(x):
        return constant(out)
    return record("dropout", out, lambda g: ((backend.widen(g) * mask).astype(g.dtype, copy=False),), (x,))


def channel_dropout(
    name: str, x: Tensor | Array, p: float, rng: Any, training: bool, ndims: tuple[int, int]
) -> Tensor:
    """As `dropout`, of whole channels (Tompson et al., arXiv:1411.4280).

    Args:
        name: of the operation, for messages.
        x: (batch, channels, ...) of `ndims[1]` axes, or (channels, ...) of `ndims[0]`.
        p: in [0, 1].
        rng: as of `dropout`.
        training: if False, `x` passes unchanged.
        ndims: number of axes without and with a batch.
    """
    x = as_tensor(x, name)
    if x.ndim not in ndims:
        raise ArgumentError(f"{name} takes {ndims[0]} or {ndims[1]} dimensions, not shape {x.shape}")
    if not training or p == 0:
        return dropout(x, p, rng, training)
    lead = x.ndim - ndims[0] + 1
    ones = backend.array_like(np.ones(x.shape[:lead] + (1,) * (x.ndim - lead), x.dtype), x._data)
    return multiply(x, dropout(ones, p, rng))
