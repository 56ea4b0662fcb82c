"""A user's array as a transport takes it: one axis, contiguous, on the host; and back."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import nullcontext
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

    __slots__ = ("_flat", "_module", "_ready", "_run", "array", "dtype", "heavy", "shape")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape: tuple[int, ...] = array.shape
        self.dtype = name_of(array.dtype)
        self.heavy = False
        self._flat: Flat | None = None  # the same memory
        self._run: Callable[..., Any] | None = None
        self._module: Any = np  # makes the flats
        self._ready: Callable[[], object] | None = None
        if type(array) is not np.ndarray:  # a copy waits for all that is queued in the caller's stream
            self.heavy = True
            self._run = contextvars.copy_context().run
        elif array.flags.c_contiguous and array.dtype.isnative:
            self._flat = array.reshape(-1)
        else:
            self.heavy = array.nbytes >= HEAVY

    def stay(self, ready: Callable[[], object]) -> None:
        """Its flats are to be on its own device, not on the host.

        Args:
            ready: waits for all that is queued in the current stream.
        """
        self._module, self._ready = backend.xp(self.array), ready
        if self.array.flags.c_contiguous:
            self._flat = self.array.reshape(-1)

    def load(self) -> Flat:
        """Its elements in C order: its own memory if they are so there, else a copy."""
        if self._ready is not None:
            return cast(Flat, self._there(self._load_there, self._ready))
        if self._flat is not None:
            return self._flat
        host = self._there(backend.asnumpy, self.array)
        native = host.dtype.newbyteorder("=")
        if host is self.array:
            return np.array(host, native, order="C").reshape(-1)
        return np.asarray(host, native, order="C").reshape(-1)

    def room(self) -> Flat:
        """Memory for as many elements: its own if that is contiguous."""
        if self._ready is not None:
            self._there(self._ready)  # what was queued may still read or write it
        return self.fresh(self.array.size) if self._flat is None else self._flat

    def fresh(self, count: int) -> Flat:
        """New memory for so many elements of its dtype."""
        with backend.device_of(self.array) if self._ready is not None else nullcontext():
            return cast(Flat, self._module.empty(count, backend.dtype_from_name(self.dtype)))

    def written(self, flat: Flat | None, result: T) -> T:
        """Writes elements in C order into the array, unless they are its own memory; answers `result`."""
        if flat is not self._flat:
            self._there(self._assign, flat)
        return result

    def result(self, flat: Flat, shape: tuple[int, ...]) -> Array:
        """A new array of elements in C order, where this one is."""
        array = flat.reshape(shape)
        if self._run is None or self._ready is not None:
            return array
        return cast(Array, self._there(backend.to_device, array, backend.device_of(self.array)))

    def _load_there(self, ready: Callable[[], object]) -> Flat:
        with backend.device_of(self.array):
            flat = self._flat
            if flat is None:
                flat = self._module.ascontiguousarray(self.array).reshape(-1)
            ready()
            return flat

    def _assign(self, flat: Flat) -> None:
        shaped = flat.reshape(self.shape)
        if self._run is None:
            self.array[...] = shaped
            return
        with backend.device_of(self.array):
            self.array[...] = shaped if self._ready is not None else backend.array_like(shaped, self.array)

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
    if not isinstance(value, np.generic) and not backend.is_array(value):
        text = f"{type(value).__name__} is not an array: pass a NumPy or CuPy array, or a Tensor"
        raise ArgumentError(text)
    on_host = backend.device_of(value) == backend.CPU
    return np.asarray(value) if on_host else cast(Array, value)  # of subclasses, their plain array
