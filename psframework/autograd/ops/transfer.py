"""Tensors to another device or dtype; the gradient travels back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from psframework import backend
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, Device, DType, Stream
from psframework.errors import ArgumentError

Target: TypeAlias = str | Device | Tensor | Array | DType | type


def to(
    x: Tensor | Array,
    target: Target,
    dtype: Any = None,
    *,
    copy: bool = False,
    stream: Stream | None = None,
) -> Tensor:
    """`x` on another device, in another dtype, or both; itself if nothing changes.

    Args:
        x: any shape.
        target: a device or its name, a dtype or its name, or a tensor or array to be like.
        dtype: if `target` is a device, the dtype as well.
        copy: copy also if nothing changes.
        stream: of the GPU's side of the copy, as `backend.to_device` takes it.

    Raises:
        ArgumentError: no such device or dtype.
    """
    x = as_tensor(x, "to")
    data, here = x._data, backend.device_of(x._data)
    there, kind = _parsed(target, dtype)
    there, kind = there or here, kind or data.dtype
    if there == here and kind == data.dtype and not copy:
        return x
    out = _moved(data, there, kind, stream)
    if out is data:
        out = data.copy()
    if not recording(x) or not backend.is_floating(kind):
        return constant(out)
    source_dtype = data.dtype

    def rule(gradient: Array) -> Sequence[Array]:
        return (_moved(gradient, here, source_dtype, None),)

    return record("to", out, rule, (x,))


def _parsed(target: Any, dtype: Any) -> tuple[Device | None, DType | None]:
    if isinstance(target, Tensor):
        target = target._data
    if backend.is_array(target):
        return backend.device_of(target), target.dtype
    place: Device | None = None
    kind: DType | None = None if dtype is None else _dtype(dtype)
    if isinstance(target, Device) or (isinstance(target, str) and not _is_dtype(target)):
        place = backend.device(target)
    elif kind is None:
        kind = _dtype(target)
    else:
        raise ArgumentError(f"to: two dtypes, {target!r} and {dtype!r}: give a device and a dtype")
    if kind is not None:
        backend.dtype_name(kind)
    return place, kind


def _is_dtype(name: str) -> bool:
    try:
        backend.dtype_from_name(name)
    except ArgumentError:
        return False
    return True


def _dtype(target: Any) -> DType:
    try:
        if target is None:  # NumPy's float64
            raise TypeError
        kind: DType = np.dtype(target)
        return kind
    except TypeError as error:
        raise ArgumentError(f"to takes a device, a dtype or a tensor, not {target!r}") from error


def _moved(array: Array, there: Device, dtype: DType, stream: Stream | None) -> Array:
    """Converted on whichever side leaves fewer bytes to carry."""
    if dtype.itemsize < array.dtype.itemsize:
        array = array.astype(dtype)
    array = backend.to_device(array, there, stream=stream)
    return array if array.dtype == dtype else array.astype(dtype)
