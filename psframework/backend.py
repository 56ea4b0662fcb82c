"""The one seam between NumPy and CuPy: everything else asks `xp(array)` for the module to compute with."""

from __future__ import annotations

import importlib
import math
import sys
from types import ModuleType
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from psframework.errors import ArgumentError

# NumPy's class stands for every kind of array: CuPy's has the same methods, and CuPy is optional.
Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = np.dtype[Any]

bfloat16: DType = np.dtype(ml_dtypes.bfloat16)

_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_OTHERS = ("float16", "float32", "float64", "complex64", "complex128")
_BY_NAME: dict[str, DType] = {name: np.dtype(name) for name in _INTEGERS + _OTHERS} | {"bfloat16": bfloat16}
_NARROW = frozenset((np.dtype("float16"), bfloat16))
_FLOATING = frozenset((np.dtype("float32"), np.dtype("float64"))) | _NARROW
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


def asnumpy(array: object) -> Array:
    """`array` in host memory: itself if it is there already, else a copy from its device."""
    if isinstance(array, np.ndarray):
        return array
    module = _namespaces.get(type(array)) or _find_namespace(type(array))
    if module is not None and hasattr(module, "asnumpy"):
        return cast(Array, module.asnumpy(array))
    return np.asarray(array)


def as_array(value: object) -> Array:
    """`value` itself if it is an array; the scalars that NumPy answers become arrays without axes."""
    return cast(Array, value) if is_array(value) else np.asarray(value)


def array_like(value: object, like: Array, dtype: DType | None = None) -> Array:
    """`value` (number, list or array) as an array where `like` lives."""
    return cast(Array, xp(like).asarray(value, dtype=dtype))


def cupy() -> ModuleType | None:
    """CuPy if it is installed and a device answers, else None."""
    try:
        module = importlib.import_module("cupy")
        # Without a driver CuPy imports, and everything but this question raises.
        return module if module.cuda.is_available() else None
    except Exception:
        sys.modules.pop("cupy", None)
        return None


def dtype_name(dtype: npt.DTypeLike) -> str:
    """The name a dtype travels under, such as "float32" or "bfloat16".

    `dtype.str` will not do: bfloat16's is "<V2".

    Raises:
        ArgumentError: the dtype is none that psframework handles (objects, strings, dates, records).
    """
    name = np.dtype(dtype).name
    if name not in _BY_NAME:
        raise ArgumentError(f"dtype {name!r} is not supported: use one of {', '.join(_BY_NAME)}")
    return name


def dtype_from_name(name: str) -> DType:
    """The dtype (in this machine's byte order) of a name made by `dtype_name`.

    Raises:
        ArgumentError: no such dtype.
    """
    dtype = _BY_NAME.get(name)
    if dtype is None:
        raise ArgumentError(f"dtype {name!r} is not supported: use one of {', '.join(_BY_NAME)}")
    return dtype


def is_floating(dtype: DType) -> bool:
    """Whether gradients can exist in `dtype`: a real floating type, bfloat16 included."""
    return dtype in _FLOATING


def is_narrow(dtype: DType) -> bool:
    """Whether `dtype` has 16 bits, so that sums of it must be kept in float32."""
    return dtype in _NARROW


def widen(array: Array) -> Array:
    """float16 and bfloat16 as float32, to compute in; every other array as it is."""
    return array.astype(_FLOAT32) if array.dtype in _NARROW else array


# erf(x) / x as a quotient of two polynomials in x * x over [0, 16], lowest power first; fitted by iterated
# least squares against the exact function. Relative error 2.5e-8 before rounding, 4e-7 in float32.
_ERF_NUMERATOR = (
    1.1283791393228313, 0.1935450532470004, 0.053101744807997835,
    0.0038833429993706753, 0.00028456576446755683, 1.98678131923171e-06,
)  # fmt: skip
_ERF_DENOMINATOR = (
    1.0, 0.5048573932194333, 0.11534999614611256,
    0.015207250160955562, 0.0011855706357742546, 3.7420156276215626e-05,
)  # fmt: skip
_exact_erf = np.frompyfunc(math.erf, 1, 1)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total += coefficient
        total *= x
    total += coefficients[0]
    return total


def erf(array: Array) -> Array:
    """The error function of float32 or float64. NumPy has none, and SciPy is no dependency."""
    if xp(array) is not np:
        return cast(Array, importlib.import_module("cupyx.scipy.special").erf(array))
    if array.dtype != _FLOAT32:
        return np.asarray(_exact_erf(array)).astype(np.float64)
    x = np.asarray(np.clip(array, -4, 4)).reshape(array.shape)
    square = np.asarray(x * x)
    return np.asarray(x * _polynomial(square, _ERF_NUMERATOR) / _polynomial(square, _ERF_DENOMINATOR))
