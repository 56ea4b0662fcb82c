"""Which module computes with an array: NumPy, CuPy, or a device of tests."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from psframework.backend.dtypes import NARROW, DType
from psframework.errors import ArgumentError

# NumPy's class stands for every kind of array: CuPy's has the same methods, and CuPy is optional.
Array: TypeAlias = npt.NDArray[Any]

_FLOAT32 = np.dtype("float32")

# class of array -> the module that computes with it
_namespaces: dict[type, Any] = {np.ndarray: np}


def register_namespace(array_type: type, module: Any) -> None:
    """Let `xp` answer `module` for arrays of exactly `array_type` (used by devices in tests).

    Args:
        array_type: a class whose instances behave as `numpy.ndarray` does.
        module: an object with NumPy's functions for them.
    """
    _namespaces[array_type] = module


def forget_namespace(array_type: type) -> None:
    """Undo `register_namespace`."""
    _namespaces.pop(array_type, None)


def _find_namespace(kind: type) -> Any | None:
    known = _namespaces.get(kind)
    if known is not None:
        return known
    for base in kind.__mro__:
        if base in _namespaces:
            _namespaces[kind] = _namespaces[base]
            return _namespaces[base]
    if kind.__module__.partition(".")[0] == "cupy":
        cupy = importlib.import_module("cupy")
        if issubclass(kind, cupy.ndarray):
            _namespaces[kind] = cupy
            return cupy
    return None


def xp(array: object) -> Any:
    """The module that computes with `array`: `numpy` or `cupy`.

    Raises:
        ArgumentError: it is no array of a known kind.
    """
    module = _namespaces.get(type(array)) or _find_namespace(type(array))
    if module is None:
        if isinstance(array, np.generic):
            return np
        raise ArgumentError(f"{type(array).__name__} is not an array: pass a NumPy or CuPy array")
    return module


def is_array(value: object) -> bool:
    """Whether `value` is a NumPy or CuPy array (NumPy scalars, lists and Tensors are not)."""
    return type(value) in _namespaces or _find_namespace(type(value)) is not None


def as_array(value: object) -> Array:
    """`value` itself if it is an array; the scalars that NumPy answers become arrays without axes."""
    if isinstance(value, np.generic):  # most often; `is_array` would look through all its bases
        return np.asarray(value)
    return cast(Array, value) if is_array(value) else np.asarray(value)


def widen(array: Array) -> Array:
    """float16 and bfloat16 as float32, to compute in; every other array as it is."""
    return array.astype(_FLOAT32) if array.dtype in NARROW else array


def cupy() -> ModuleType | None:
    """CuPy if it is installed and a device answers, else None."""
    try:
        module = importlib.import_module("cupy")
        # Without a driver CuPy imports, and everything but this question raises.
        return module if module.cuda.is_available() else None
    except Exception:
        sys.modules.pop("cupy", None)
        return None


__all__ = [
    "Array",
    "DType",
    "as_array",
    "cupy",
    "forget_namespace",
    "is_array",
    "register_namespace",
    "widen",
    "xp",
]
