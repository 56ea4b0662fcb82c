"""Arrays over the memory of other libraries' arrays (DLPack)."""

from __future__ import annotations

import ctypes
import math
from typing import Any, cast

import numpy as np

from psframework.backend.arrays import Array, cupy
from psframework.backend.dtypes import bfloat16, dtype_name
from psframework.errors import ArgumentError

_CPU, _CUDA, _PINNED = 1, 2, 3  # DLDeviceType
_BFLOAT = 4  # DLDataTypeCode
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


def from_dlpack(source: Any, *, copy: bool | None = None) -> Array:
    """An array over the memory of another library's (torch, JAX, CuPy, NumPy), on its device.

    Args:
        source: has `__dlpack__` and `__dlpack_device__`; it stays alive as long as the array.
        copy: True to copy always; False to refuse read-only memory, of which None makes a copy.

    Raises:
        ArgumentError: no such array, a dtype or device that psframework doesn't have, or `copy=False` and
            the memory is read-only.
    """
    array = _borrowed(source)
    dtype_name(array.dtype)
    read_only = isinstance(array, np.ndarray) and not array.flags.writeable
    if read_only and copy is False:
        raise ArgumentError("from_dlpack: this memory is read-only: allow a copy of it, copy=None")
    return array.copy() if copy or read_only else array


def _borrowed(source: Any) -> Array:
    if not hasattr(source, "__dlpack_device__"):
        raise ArgumentError(f"from_dlpack takes an array with __dlpack__, not {type(source).__name__}")
    try:
        kind, _ = source.__dlpack_device__()
        if kind in (_CPU, _PINNED):
            return _on_host(source)
        if kind == _CUDA and (module := cupy()) is not None:
            return cast(Array, module.from_dlpack(source))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"from_dlpack: {type(source).__name__} can't be taken: {error}") from error
    reason = "CuPy finds no GPU here" if kind == _CUDA else "only CPU and CUDA are supported"
    raise ArgumentError(f"from_dlpack: the array is on a device of DLPack's type {kind}: {reason}")


def _on_host(source: Any) -> Array:
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError):
        # NumPy knows no bfloat16; its memory is as good as any.
        array = source if isinstance(source, np.ndarray) else _bfloat16(_capsule(source))
        if array is None or array.dtype != bfloat16:
            raise
        return array


def _capsule(source: Any) -> Any:
    try:
        return source.__dlpack__(max_version=(1, 0))
    except TypeError:  # older libraries
        return source.__dlpack__()


class _Tensor(ctypes.Structure):
    """DLTensor, as dlpack.h has it; an unversioned capsule points to one."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, which says whether the memory may be written to."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _contents(capsule: Any) -> tuple[_Tensor, bool]:
    """The tensor in a capsule, and whether it may be written to: as in NumPy, only if the capsule says so."""
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    name = get_name(capsule)
    address = get_pointer(capsule, name)
    if name != b"dltensor_versioned":
        return ctypes.cast(address, ctypes.POINTER(_Tensor)).contents, False
    managed = ctypes.cast(address, ctypes.POINTER(_Versioned)).contents
    return managed.tensor, not managed.flags & _READ_ONLY


def _bfloat16(capsule: Any) -> Array | None:
    """The array in a capsule if it is bfloat16. It is not consumed: it frees the memory when it goes."""
    found, writeable = _contents(capsule)
    if (found.code, found.bits, found.lanes) != (_BFLOAT, 16, 1):
        return None
    shape = tuple(found.shape[i] for i in range(found.ndim))
    if not math.prod(shape):
        return np.empty(shape, bfloat16)
    if found.strides:
        strides = tuple(2 * found.strides[i] for i in range(found.ndim))
    else:  # none are in order
        strides = tuple(2 * math.prod(shape[i + 1 :]) for i in range(found.ndim))
    if any(stride < 0 for stride in strides):
        raise BufferError("negative strides")
    extent = 2 + sum((length - 1) * stride for length, stride in zip(shape, strides))
    memory = (ctypes.c_ubyte * extent).from_address(found.data + found.byte_offset)
    memory.capsule = capsule
    array = np.ndarray(shape, bfloat16, memory, 0, strides)
    array.flags.writeable = writeable
    return array
