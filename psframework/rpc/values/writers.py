"""How plain values and arrays are written. Importing this module teaches `encoder` its types."""

from __future__ import annotations

import datetime
import reprlib
import zoneinfo
from typing import Any

import numpy as np

from psframework import backend
from psframework.rpc import naming
from psframework.rpc.values import kinds
from psframework.rpc.values.encoder import WRITERS, Encoder, Writer, seen_from
from psframework.rpc.values.kinds import CannotTravel
from psframework.wire.device_bytes import DEVICE_BYTES, DeviceBytes
from psframework.wire.spec import as_bytes


def _constant(kind: int) -> Writer:
    return lambda encoder, value, depth: encoder.outline.append(kind)


def _bool(encoder: Encoder, value: bool, depth: int) -> None:
    encoder.outline.append(kinds.TRUE if value else kinds.FALSE)


def _int(encoder: Encoder, value: int, depth: int) -> None:
    if value in kinds.INTEGERS:
        encoder.outline.append(kinds.INTEGER)
        encoder.integers.append(value)
    else:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        encoder.blob(data, len(data))
        encoder.outline.append(kinds.LARGE_INTEGER)


def _float(encoder: Encoder, value: float, depth: int) -> None:
    encoder.outline.append(kinds.REAL)
    encoder.reals.append(value)


def _complex(encoder: Encoder, value: complex, depth: int) -> None:
    encoder.outline.append(kinds.COMPLEX)
    encoder.reals += (value.real, value.imag)


def _text(encoder: Encoder, value: str, depth: int) -> None:
    if len(value) <= kinds.INLINE and (value.isascii() or _is_plain(value)):
        encoder.outline.append(kinds.TEXT)
        encoder.texts.append(value)
        return
    data = value.encode("utf-8", "surrogatepass")
    encoder.blob(data, len(data))
    encoder.outline.append(kinds.ENCODED_TEXT)


def _is_plain(value: str) -> bool:
    """Whether UTF-8 can hold it: no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(encoder: Encoder, value: bytes, depth: int) -> None:
    encoder.blob(value, len(value))
    encoder.outline.append(kinds.BYTES)


def _bytearray(encoder: Encoder, value: bytearray, depth: int) -> None:
    encoder.blob(value, len(value))
    encoder.outline.append(kinds.BYTEARRAY)


def _memoryview(encoder: Encoder, value: memoryview, depth: int) -> None:
    _bytes(encoder, value.tobytes(), depth)


def _list(encoder: Encoder, value: list[Any], depth: int) -> None:
    inner, items = encoder.open(kinds.LIST, value, depth), list(value)
    encoder.number(len(items))
    encoder.items(items, inner, value)


def _tuple(encoder: Encoder, value: tuple[Any, ...], depth: int) -> None:
    inner = encoder.open(kinds.TUPLE, value, depth)
    encoder.number(len(value))
    encoder.items(value, inner, value)


def _dict(encoder: Encoder, value: dict[Any, Any], depth: int) -> None:
    inner, items = encoder.open(kinds.DICT, value, depth), list(value.items())
    encoder.number(len(items))
    key: Any = None
    at_key = False
    try:
        for key, item in items:
            at_key = True
            encoder.put(key, inner)
            at_key = False
            encoder.put(item, inner)
    except CannotTravel as error:
        text = _in_short(key)
        raise seen_from(error, f" key {text}" if at_key else f"[{text}]", value) from None


def _in_short(key: object) -> str:
    try:
        return reprlib.repr(key)
    except ValueError:  # an integer with more digits than Python writes
        return "..."


def _set(kind: int) -> Writer:
    def write(encoder: Encoder, value: Any, depth: int) -> None:
        inner, items = encoder.open(kind, value, depth), list(value)
        encoder.number(len(items))
        encoder.items(items, inner, value)

    return write


def _steps(kind: int) -> Writer:
    def write(encoder: Encoder, value: Any, depth: int) -> None:
        inner = encoder.open(kind, value, depth)
        encoder.items((value.start, value.stop, value.step), inner, value)

    return write


def _date(encoder: Encoder, value: datetime.date, depth: int) -> None:
    encoder.outline.append(kinds.DATE)
    encoder.texts.append(value.isoformat())


def _time(kind: int) -> Writer:
    def write(encoder: Encoder, value: Any, depth: int) -> None:
        inner = encoder.open(kind, value, depth)
        encoder.texts.append(value.replace(tzinfo=None).isoformat())
        encoder.number(value.fold)
        encoder.put(value.tzinfo, inner)

    return write


def _duration(encoder: Encoder, value: datetime.timedelta, depth: int) -> None:
    encoder.outline.append(kinds.DURATION)
    encoder.integers += (value.days, value.seconds, value.microseconds)


def _fixed_zone(encoder: Encoder, value: datetime.timezone, depth: int) -> None:
    inner = encoder.open(kinds.FIXED_ZONE, value, depth)
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
    encoder.put(offset, inner)
    encoder.put(name[0] if name else None, inner)


def _named_zone(encoder: Encoder, value: zoneinfo.ZoneInfo, depth: int) -> None:
    if value.key is None:
        raise CannotTravel("a zoneinfo.ZoneInfo without key, made of a file")
    encoder.outline.append(kinds.NAMED_ZONE)
    encoder.texts.append(value.key)


def _scalar(number: int) -> Writer:
    head = bytes([kinds.SCALAR, number])

    def write(encoder: Encoder, value: Any, depth: int) -> None:
        if kinds.BIG_ENDIAN:
            value = value.astype(kinds.DTYPES[number].newbyteorder("<"))
        encoder.blobs.append(value.tobytes())
        encoder.outline += head

    return write


def _array(encoder: Encoder, value: Any, depth: int) -> None:
    number = kinds.NUMBERS.get(value.dtype)
    if number is None or kinds.BIG_ENDIAN:
        value, number = _native(value)
    nbytes = value.nbytes
    if nbytes > kinds.INLINE and not encoder.has_room(nbytes):
        encoder.outline.append(kinds.PART)
        encoder.journey.parts.append(as_bytes(value) if type(value) is np.ndarray else DeviceBytes(value))
    else:
        encoder.blobs.append(value.tobytes())
    outline = encoder.outline
    outline.append(kinds.ARRAY)
    outline.append(number)
    shape = value.shape
    outline.append(len(shape))
    for axis in shape:
        encoder.number(axis)


def _native(value: Any) -> tuple[Any, int]:
    """An array of another byte order as it travels, and the number of its dtype."""
    number = kinds.NUMBERS.get(value.dtype.newbyteorder("="))
    if number is None:
        names = ", ".join(dtype.name for dtype in kinds.DTYPES.values())
        raise CannotTravel(f"an array of {value.dtype}: arrays of these dtypes travel: {names}")
    return value.astype(value.dtype.newbyteorder("<")), number


def other_array(encoder: Encoder, value: Any, depth: int) -> None:
    """Arrays on devices, and NumPy's own subclass without further meaning."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.memmap:
            name = naming.type_name(type(value))
            raise CannotTravel(f"{name}, a subclass of array: pass numpy.asarray(...) of it")
        return _array(encoder, np.asarray(value), depth)
    encoder.outline.append(kinds.ON_DEVICE)
    encoder.texts.append(backend.device_of(value).kind)
    if value.nbytes < DEVICE_BYTES or value.dtype not in kinds.NUMBERS or kinds.BIG_ENDIAN:
        value = np.asarray(backend.asnumpy(value))
    elif not value.flags.c_contiguous:
        with backend.device_of(value):
            value = backend.xp(value).ascontiguousarray(value)
    return _array(encoder, value, depth)


def any_array(encoder: Encoder, value: Any, depth: int) -> None:
    """Writes an array, wherever it is."""
    (_array if type(value) is np.ndarray else other_array)(encoder, value, depth)


WRITERS.update(
    {
        type(None): _constant(kinds.NONE),
        type(...): _constant(kinds.ELLIPSIS),
        bool: _bool,
        int: _int,
        float: _float,
        complex: _complex,
        str: _text,
        bytes: _bytes,
        bytearray: _bytearray,
        memoryview: _memoryview,
        list: _list,
        tuple: _tuple,
        dict: _dict,
        set: _set(kinds.SET),
        frozenset: _set(kinds.FROZENSET),
        slice: _steps(kinds.SLICE),
        range: _steps(kinds.RANGE),
        datetime.date: _date,
        datetime.time: _time(kinds.TIME),
        datetime.datetime: _time(kinds.DATETIME),
        datetime.timedelta: _duration,
        datetime.timezone: _fixed_zone,
        zoneinfo.ZoneInfo: _named_zone,
        np.ndarray: _array,
        **{kind: _scalar(number) for kind, number in kinds.SCALARS.items()},
    }
)
