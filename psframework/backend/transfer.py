"""Arrays from one device to another."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from psframework.backend.arrays import Array, DType, is_array, xp
from psframework.backend.devices import CPU, Device, device, device_of
from psframework.backend.platforms import HOST, pinning, platform_of
from psframework.backend.streams import Stream


def to_device(array: Array, target: str | Device, *, stream: Stream | None = None) -> Array:
    """`array` on another device; itself if it is there already.

    Args:
        array: any array.
        target: a device or its name.
        stream: of the GPU's side of the copy; the current one by default. To the host the copy is complete
            on return, else it is queued.

    Raises:
        ArgumentError: no array, or no such device.
    """
    here, there = device_of(array), target if type(target) is Device else device(target)
    if here == there:
        return array
    if here.kind == there.kind:
        return here.platform.copy(array, there.index, stream)
    host = array if here == CPU else here.platform.fetch(array, stream if there == CPU else None)
    return host if there == CPU else there.platform.put(host, there.index, stream)


def asnumpy(array: object, *, stream: Stream | None = None) -> Array:
    """`array` in host memory: itself if it is there already, else a copy from its device.

    Args:
        array: an array, a number or nested lists.
        stream: of the copy; it begins after what is in the stream, and is complete on return.
    """
    if isinstance(array, np.ndarray):
        return array
    platform = platform_of(array)
    if platform is not None and platform is not HOST:
        return platform.fetch(cast(Array, array), stream)
    return np.asarray(array)


def array_like(value: Any, like: Array, dtype: DType | None = None) -> Array:
    """`value` (number, list, or array of any device) as an array where `like` lives."""
    if xp(like) is np:
        return np.asarray(value if not is_array(value) else asnumpy(value), dtype=dtype)
    host = value if is_array(value) else np.asarray(value)
    if dtype is not None:
        host = host.astype(dtype, copy=False)
    return to_device(host, device_of(like))


def pinned_empty(shape: int | tuple[int, ...], dtype: Any, target: str | Device | None = None) -> Array:
    """Host memory that a GPU copies from and to directly; ordinary memory where there is no GPU.

    Args:
        shape: of the array.
        dtype: of the array; its values are undefined.
        target: the device that will copy; a GPU by default, where there is one.
    """
    sizes = (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)
    platform = pinning() if target is None else device(target).platform
    return platform.pinned_empty(sizes, np.dtype(dtype))


def stream(target: str | Device) -> Stream:
    """A new stream on a device; on the CPU a null object that does nothing."""
    place = device(target)
    return place.platform.stream(place.index)
