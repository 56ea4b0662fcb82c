"""What encoder and decoder agree on: numbers of nodes and element types, and limits."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from psframework.backend import DType, dtype_from_name
from psframework.errors import ArgumentError
from psframework.proto.v1 import remote_pb2 as pb

INLINE: Final = 1024
"""Texts and arrays up to this many bytes travel inside the message; larger ones as parts of the frame."""

ROOM: Final = 64 * 1024
"""Larger arrays too, while all of them take no more than this: copying costs less than a part's account."""

COPIED: Final = 1 << 20
"""Arrays up to this many bytes arrive as copies, which may be written; larger ones as read-only views."""

MAX_DEPTH: Final = 102
"""Levels of containers: 100 for the caller's values, two for the tuple of arguments and keyword arguments."""

MAX_CONTAINERS: Final = 1 << 20
"""Containers in one value. An empty set takes 2 bytes here, and 216 in memory: a bound has to be."""

MAX_AXES: Final = 64  # as NumPy's arrays have at most
BIG_ENDIAN: Final = sys.byteorder == "big"
INTEGERS: Final = range(-(1 << 63), 1 << 63)

NONE: Final = int(pb.VALUE_KIND_NONE)
FALSE: Final = int(pb.VALUE_KIND_FALSE)
TRUE: Final = int(pb.VALUE_KIND_TRUE)
ELLIPSIS: Final = int(pb.VALUE_KIND_ELLIPSIS)
INTEGER: Final = int(pb.VALUE_KIND_INTEGER)
LARGE_INTEGER: Final = int(pb.VALUE_KIND_LARGE_INTEGER)
REAL: Final = int(pb.VALUE_KIND_REAL)
COMPLEX: Final = int(pb.VALUE_KIND_COMPLEX)
TEXT: Final = int(pb.VALUE_KIND_TEXT)
ENCODED_TEXT: Final = int(pb.VALUE_KIND_ENCODED_TEXT)
BYTES: Final = int(pb.VALUE_KIND_BYTES)
BYTEARRAY: Final = int(pb.VALUE_KIND_BYTEARRAY)
LIST: Final = int(pb.VALUE_KIND_LIST)
TUPLE: Final = int(pb.VALUE_KIND_TUPLE)
DICT: Final = int(pb.VALUE_KIND_DICT)
SET: Final = int(pb.VALUE_KIND_SET)
FROZENSET: Final = int(pb.VALUE_KIND_FROZENSET)
SLICE: Final = int(pb.VALUE_KIND_SLICE)
RANGE: Final = int(pb.VALUE_KIND_RANGE)
DATE: Final = int(pb.VALUE_KIND_DATE)
TIME: Final = int(pb.VALUE_KIND_TIME)
DATETIME: Final = int(pb.VALUE_KIND_DATETIME)
DURATION: Final = int(pb.VALUE_KIND_DURATION)
FIXED_ZONE: Final = int(pb.VALUE_KIND_FIXED_ZONE)
NAMED_ZONE: Final = int(pb.VALUE_KIND_NAMED_ZONE)
ARRAY: Final = int(pb.VALUE_KIND_ARRAY)
SCALAR: Final = int(pb.VALUE_KIND_SCALAR)
TENSOR: Final = int(pb.VALUE_KIND_TENSOR)
PARAMETER: Final = int(pb.VALUE_KIND_PARAMETER)
SPARSE_ROWS: Final = int(pb.VALUE_KIND_SPARSE_ROWS)
DTYPE: Final = int(pb.VALUE_KIND_DTYPE)
SCALAR_TYPE: Final = int(pb.VALUE_KIND_SCALAR_TYPE)
PYTHON_TYPE: Final = int(pb.VALUE_KIND_PYTHON_TYPE)
DEVICE: Final = int(pb.VALUE_KIND_DEVICE)
GENERATOR: Final = int(pb.VALUE_KIND_GENERATOR)
PART: Final = int(pb.VALUE_KIND_PART)
ON_DEVICE: Final = int(pb.VALUE_KIND_ON_DEVICE)
ENUM: Final = int(pb.VALUE_KIND_ENUM)
RECORD: Final = int(pb.VALUE_KIND_RECORD)
FUNCTION: Final = int(pb.VALUE_KIND_FUNCTION)
MODULE: Final = int(pb.VALUE_KIND_MODULE)
PASSENGER: Final = int(pb.VALUE_KIND_PASSENGER)
SAME_MODULE: Final = int(pb.VALUE_KIND_SAME_MODULE)

_PREFIX = "ELEMENT_TYPE_"
DTYPES: Final[dict[int, DType]] = {
    number: dtype_from_name(name.removeprefix(_PREFIX).lower())
    for name, number in pb.ElementType.items()
    if number
}
NUMBERS: Final[dict[DType, int]] = {dtype: number for number, dtype in DTYPES.items()}
# `longlong` is another class than `int64`, although the dtypes are equal.
SCALARS: Final[dict[type, int]] = {dtype.type: number for dtype, number in NUMBERS.items()} | {
    np.dtype(kind).type: NUMBERS[np.dtype(kind)] for kind in ("longlong", "ulonglong")
}
PYTHON_TYPES: Final[dict[str, type]] = {kind.__name__: kind for kind in (bool, int, float, complex)}


class CannotTravel(ArgumentError, TypeError):
    """A value that can't be sent; the message says where it is and of which type."""

    def __init__(self, reason: str, path: list[Any] | None = None):
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = path or []
        self.culprit: object = None
