"""Plain values as arrays of bytes, for broadcast_object and gather_object; `rpc.values` says what travels."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from psframework.collective.work import Flat
from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey, Outcome
from psframework.wire.device_bytes import DeviceBytes
from psframework.wire.memory import Buffer

_ALIGN: Final = 64  # of the arrays inside
_COUNT: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<Q")


def pack(value: Any) -> Flat:
    """The bytes of a value: lengths, its message, then its large arrays.

    Raises:
        CannotTravel: something in it can't; a TypeError that says which, and where it is.
    """
    journey = Journey()
    message = arguments.encode(value, journey).SerializeToString()
    journey.end(Outcome.ANSWERED)
    parts: list[Buffer] = [message]
    parts += [part.host() if isinstance(part, DeviceBytes) else part for part in journey.parts]
    lengths = [memoryview(part).nbytes for part in parts]
    head = _COUNT.pack(len(lengths)) + b"".join(map(_LENGTH.pack, lengths))
    starts, total = _places(len(head), lengths)
    flat = np.zeros(total, np.uint8)
    flat[: len(head)] = np.frombuffer(head, np.uint8)
    for start, length, part in zip(starts, lengths, parts, strict=True):
        flat[start : start + length] = np.frombuffer(part, np.uint8)
    return flat


def unpack(flat: Flat, *, views: bool = True) -> Any:
    """The value of what `pack` made on some rank.

    Args:
        flat: its bytes; more may follow.
        views: large arrays in it are read-only views of `flat`; False copies them.

    Raises:
        WireError: it is no value, or a name in it is not known here.
    """
    data = flat.view(np.uint8).data.toreadonly()
    try:
        (count,) = _COUNT.unpack_from(data)
        if count < 1 or count * _LENGTH.size > len(data):
            raise WireError(f"{count} parts in {len(data)} bytes of a value")
        lengths = [_LENGTH.unpack_from(data, _COUNT.size + i * _LENGTH.size)[0] for i in range(count)]
        starts, total = _places(_COUNT.size + count * _LENGTH.size, lengths)
        if total > len(data):
            raise WireError(f"a value of {total} bytes, and {len(data)} came")
        message, *parts = [data[at : at + length] for at, length in zip(starts, lengths, strict=True)]
        return arguments.decode(Value.FromString(bytes(message)), parts, Journey(outgoing=False), views=views)
    except (struct.error, DecodeError) as error:
        raise WireError(f"not a value: {error}") from None


def _places(start: int, lengths: list[int]) -> tuple[list[int], int]:
    """Where each part begins, and where the last ends."""
    starts = []
    for length in lengths:
        start += -start % _ALIGN
        starts.append(start)
        start += length
    return starts, start
