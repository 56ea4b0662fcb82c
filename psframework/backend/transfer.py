"""Arrays from one device to another."""

from __future__ import annotations

from typing import cast

import numpy as np

from psframework.backend.arrays import Array, DType, _find_namespace, _namespaces, xp


def asnumpy(array: object) -> Array:
    """`array` in host memory: itself if it is there already, else a copy from its device."""
    if isinstance(array, np.ndarray):
        return array
    module = _namespaces.get(type(array)) or _find_namespace(type(array))
    if module is not None and hasattr(module, "asnumpy"):
        return cast(Array, module.asnumpy(array))
    return np.asarray(array)


def array_like(value: object, like: Array, dtype: DType | None = None) -> Array:
    """`value` (number, list or array) as an array where `like` lives."""
    return cast(Array, xp(like).asarray(value, dtype=dtype))
