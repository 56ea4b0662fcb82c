"""A user's array as a transport takes it: one axis, contiguous, on the host; and back."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np

from psframework import backend
from psframework.autograd import Tensor
from psframework.backend import Array, DType
from psframework.collective.work import Flat
from psframework.errors import ArgumentError

T = TypeVar("T")

HEAVY: Final = 1 << 20
"""Bytes from which a copy is kept off the event loop."""

_names: dict[DType, str] = {}  # `dtype.name` alone costs as much as a small operation


def name_of(dtype: DType) -> str:
    """The name a dtype travels under; ArgumentError if it can't."""
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = backend.dtype_name(dtype)
    return name


class Lent:
    """An array of the user's during one operation.

    Attributes:
        array: of any layout, byte order and device.
        dtype: name of its dtype.
        shape: its.
        heavy: copying it takes so long that it should be kept off the event loop.
    """

    __slots__ = ("_flat", "_run", "array", "dtype", "heavy", "shape")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape: tuple[int, ...] = array.shape
        self.dtype = name_of(array.dtype)
        self.heavy = False
        self._flat: Flat | None = None  # the same memory
        self._run: Callable[..., Any] | None = None
        if type(array) is not np.ndarray:  # a copy waits for all that is queued in the caller's stream
            self.heavy = True
            self._run = contextvars.copy_context().run
        elif array.flags.c_contiguous and array.dtype.isnative:
            self._flat = array.reshape(-1)
        else:
            self.heavy = array.nbytes >= HEAVY

    def load(self) -> Flat:
        """Its elements in C order: its own memory if they are so there, else a copy."""
        if self._flat is not None:
            return self._flat
        host = self._there(backend.asnumpy, self.array)
        native = host.dtype.newbyteorder("=")
        if host is self.array:
            return np.array(host, native, order="C").reshape(-1)
        return np.asarray(host, native, order="C").reshape(-1)

    def room(self) -> Flat:
        """Memory for as many elements: its own if that is contiguous."""
        if self._flat is not None:
            return self._flat
        return np.empty(self.array.size, backend.dtype_from_name(self.dtype))

    def written(self, flat: Flat | None, result: T) -> T:
        """Writes elements in C order into the array, unless they are its own memory; answers `result`."""
        if flat is not self._flat:
            self._there(self._assign, flat)
        return result

    def result(self, flat: Flat, shape: tuple[int, ...]) -> Array:
        """A new array of elements in C order, where this one is."""
        array = flat.reshape(shape)
        if self._run is None:
            return array
        return cast(Array, self._there(backend.to_device, array, backend.device_of(self.array)))

    def _assign(self, flat: Flat) -> None:
        host = flat.reshape(self.shape)
        if self._run is None:
            self.array[...] = host
            return
        with backend.device_of(self.array):
            self.array[...] = backend.array_like(host, self.array)

    def _there(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls it with the devices and streams of the caller, also in another thread."""
        return function(*args) if self._run is None else self._run(backend.follow, function, *args)


def lend(value: object) -> Lent:
    """An array that is only read.

    Args:
        value: an array of any device, layout and byte order, a NumPy scalar, or a Tensor, whose `.data` is
            meant.

    Raises:
        ArgumentError: it is none, or of a dtype that does not travel.
    """
    return Lent(value if type(value) is np.ndarray else _array_of(value))


def lend_to_write(value: object) -> Lent:
    """An array that the result is written into; raises as `lend`, and ArgumentError if it is read-only."""
    if isinstance(value, np.generic):
        raise ArgumentError("a number can't be written into: pass an array without axes, np.array(number)")
    array = value if type(value) is np.ndarray else _array_of(value)
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ArgumentError("the result would be written into this array, and it is read-only: pass a copy")
    return Lent(array)


def _array_of(value: object) -> Array:
    if isinstance(value, Tensor):
        value = value.data
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)  # of subclasses, their plain array
    if backend.is_array(value):
        return cast(Array, value)
    raise ArgumentError(f"{type(value).__name__} is not an array: pass a NumPy or CuPy array, or a Tensor")
