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

import numpy as np
import numpy.typing as npt

from psframework.backend import dtype_from_name, dtype_name
from psframework.errors import ArgumentError, WireError
from psframework.proto.v1.tensor_pb2 import ArraySpec
from psframework.wire.memory import Buffer

Array = npt.NDArray[Any]

MAX_BYTES: Final = 1 << 33
"""Default bound of one array's size: 8 GiB. Services pass their own."""

MAX_NDIM: Final = 32

_BIG_ENDIAN_HOST = sys.byteorder == "big"


@dataclass(frozen=True, slots=True)
class Layout:
    """Type and shape of an array, already checked.

    Attributes:
        dtype: native-endian dtype, one that the backend names.
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
        return cls(dtype_from_name(dtype_name(array.dtype)), array.shape)

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
        layout = cls(dtype_named(dtype), tuple(shape))
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


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of a name that came from a peer; WireError for one that does not travel."""
    try:
        return dtype_from_name(name[:40])  # the message quotes the name, and a peer may send a long one
    except ArgumentError as error:
        raise WireError(str(error)) from None


def as_bytes(array: Array) -> memoryview:
    """The bytes of a NumPy array as they travel: C order, little-endian.

    A view where the array already is so (the bytes then follow later changes of the array), else a
    copy of just the array's own elements. Raises ArgumentError for dtypes that do not travel.
    """
    dtype_name(array.dtype)
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
