"""Array specs: dtype and shape as messages, and arrays as plain bytes and back.

On the wire an array is its C-contiguous, little-endian bytes. `ArraySpec` says the rest. The set of
dtypes is closed: no objects, no strings, no structured types, so no bytes of a peer become pointers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from psframework.errors import ArgumentError, WireError
from psframework.proto.v1.tensor_pb2 import ArraySpec
from psframework.wire.memory import Buffer

Array = npt.NDArray[Any]

MAX_BYTES: Final = 1 << 33
"""Default bound of one array's size: 8 GiB. Services pass their own."""

MAX_NDIM: Final = 32

_BIG_ENDIAN_HOST = sys.byteorder == "big"

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
_EXTENSIONS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name) for name in ("bool", *_INTEGERS, *_FLOATS)
} | {name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTENSIONS}
"""Every dtype that travels, by its name on the wire."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Type and shape of an array, already checked.

    Attributes:
        dtype: native-endian dtype, one of `DTYPES`.
        shape: lengths of the axes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Length of the array's bytes on the wire."""
        return self.size * self.dtype.itemsize

    @classmethod
    def of(cls, array: Array) -> Layout:
        """The layout of a NumPy array (any strides or byte order); ArgumentError for other dtypes."""
        return cls(dtype_named(array.dtype.name, error=ArgumentError), array.shape)

    @classmethod
    def from_message(cls, message: ArraySpec, *, max_bytes: int = MAX_BYTES) -> Layout:
        """Checks a spec that came from a peer, before anything is allocated for it.

        Raises:
            WireError: unknown dtype, too many axes, or more than `max_bytes` bytes.
        """
        return cls.checked(message.dtype, message.shape, max_bytes=max_bytes)

    @classmethod
    def checked(cls, dtype: str, shape: Sequence[int], *, max_bytes: int = MAX_BYTES) -> Layout:
        """The layout of a dtype's name and a shape that came from a peer; raises as `from_message`."""
        if len(shape) > MAX_NDIM:
            raise WireError(f"an array of {len(shape)} axes; at most {MAX_NDIM} are allowed")
        layout = cls(dtype_named(dtype, error=WireError), tuple(shape))
        # NumPy bounds the product of the non-zero axes too, even when another axis is 0.
        nonzero = math.prod(axis for axis in layout.shape if axis)
        if min(layout.shape, default=0) < 0 or nonzero * layout.dtype.itemsize > max_bytes:
            raise WireError(f"an array {dtype}{list(shape)} is larger than the {max_bytes} bytes allowed")
        return layout

    def to_message(self) -> ArraySpec:
        """The spec as a protobuf message."""
        return ArraySpec(dtype=self.dtype.name, shape=self.shape)

    def array(self, data: Buffer) -> Array:
        """The array over `data`, without a copy; read-only where `data` is.

        Raises:
            WireError: `data` has another length than the layout.
        """
        view = memoryview(data)
        if view.nbytes != self.nbytes:
            raise WireError(f"{view.nbytes} bytes for {self}, which takes {self.nbytes}")
        if self.nbytes == 0:
            return np.empty(self.shape, self.dtype)
        return _from_wire(np.frombuffer(view, np.uint8).view(self.dtype).reshape(self.shape))

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


def dtype_named(name: str, *, error: type[Exception] = WireError) -> np.dtype[Any]:
    """The dtype of that wire name; raises `error` for one that does not travel."""
    dtype = DTYPES.get(name)
    if dtype is None:
        raise error(f"dtype {name[:40]!r} does not travel; these do: {', '.join(DTYPES)}")
    return dtype


def as_bytes(array: Array) -> memoryview:
    """The bytes of a NumPy array as they travel: C order, little-endian.

    A view where the array already is so (the bytes then follow later changes of the array), else a
    copy of just the array's own elements. Raises ArgumentError for dtypes that do not travel.
    """
    dtype_named(array.dtype.name, error=ArgumentError)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and _BIG_ENDIAN_HOST):
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.size == 0:
        return memoryview(b"")
    # `ascontiguousarray` makes 0-d arrays 1-d, which is what the byte view needs.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _from_wire(array: Array) -> Array:
    if _BIG_ENDIAN_HOST:
        return array.view(array.dtype.newbyteorder("<")).astype(array.dtype)
    return array
