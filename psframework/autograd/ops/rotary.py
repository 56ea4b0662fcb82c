"""Rotation of pairs of features, one node: what rotary position embeddings are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from psframework import backend
from psframework.autograd.record import as_tensor, constant, guarded, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("rotate_pairs")
def rotate_pairs(x: Tensor | Array, phases: Array) -> Tensor:
    """Turns each pair of neighbouring features by an angle: a product of complex numbers.

    Args:
        x: (..., features), an even number, floating. 16-bit floats are computed in float32.
        phases: complex numbers exp(i * angle), broadcast to (..., features / 2); constants.

    Raises:
        ArgumentError: an odd number of features, or a dtype that does not fit.
    """
    x = as_tensor(x, "rotate_pairs")
    if not x.ndim or x.shape[-1] % 2:
        raise ArgumentError(f"rotate_pairs: the last axis of {x.shape} is not of pairs")
    if not backend.is_floating(x.dtype) or phases.dtype.kind != "c":
        raise ArgumentError(
            f"rotate_pairs: {x.dtype} by {phases.dtype}: features must be floating and phases complex"
        )
    out = _turned(x._data, phases)
    if not recording(x):
        return constant(out)
    back = phases.conj()

    def rule(gradient: Array) -> Sequence[Array]:
        return (_turned(gradient, back),)

    return record("rotate_pairs", out, rule, (x,))


def _turned(array: Array, phases: Array) -> Array:
    wide = backend.xp(array).ascontiguousarray(backend.widen(array))
    kind = np.complex64 if wide.dtype == np.float32 else np.complex128
    turned = wide.view(kind) * phases.astype(kind, copy=False)
    if turned.shape[:-1] != array.shape[:-1]:
        raise ArgumentError(f"rotate_pairs: phases {phases.shape} do not fit features {array.shape}")
    return cast(Array, turned.view(wide.dtype).astype(array.dtype, copy=False))
