"""Dtypes by the names they travel under, and which of them gradients can have."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from psframework.errors import ArgumentError

DType: TypeAlias = np.dtype[Any]

bfloat16: DType = np.dtype(ml_dtypes.bfloat16)

_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_OTHERS = ("float16", "float32", "float64", "complex64", "complex128")
_BY_NAME: dict[str, DType] = {name: np.dtype(name) for name in _INTEGERS + _OTHERS} | {"bfloat16": bfloat16}
NARROW = frozenset((np.dtype("float16"), bfloat16))
_FLOATING = frozenset((np.dtype("float32"), np.dtype("float64"))) | NARROW
_FLOAT32 = np.dtype("float32")


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
    return dtype in NARROW
