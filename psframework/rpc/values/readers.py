"""How nodes of plain values and arrays are read. Importing this module teaches `decoder` its kinds."""

from __future__ import annotations

import datetime
import functools
import math
import zoneinfo
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from psframework import backend
from psframework.backend import DType
from psframework.errors import ArgumentError, WireError
from psframework.rpc.values import kinds
from psframework.rpc.values.decoder import Decoder, Reader, teach
from psframework.wire.device_bytes import DeviceBytes, Part
from psframework.wire.memory import Buffer
from psframework.wire.spec import Layout

MANY: Final = 64
"""Keys of a dict or set that may have one hash."""

_SALTED: Final = {str, bytes}  # whose hashes no peer can foresee
_ndarray = np.ndarray
_LARGE_ARRAY = bytes([kinds.PART, kinds.ARRAY])
_DTYPES = [kinds.DTYPES.get(number) for number in range(256)]


def _constant(value: object) -> Reader:
    return lambda decoder, depth: value


def _integer(decoder: Decoder, depth: int) -> int:
    return decoder.integer()


def _real(decoder: Decoder, depth: int) -> float:
    return decoder.real()


def _complex(decoder: Decoder, depth: int) -> complex:
    return complex(decoder.real(), decoder.real())


def _text(decoder: Decoder, depth: int) -> str:
    return decoder.text()


# What has a blob: inside the message, or, after PART, a part of the frame


def _large_integer(decoder: Decoder, data: Buffer, is_part: bool) -> int:
    return int.from_bytes(data, "little", signed=True)


def _encoded_text(decoder: Decoder, data: Buffer, is_part: bool) -> str:
    try:
        # A part may be memory that the peer goes on writing to, while the text is being measured and copied.
        return str(bytes(data) if is_part else data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise WireError(f"a text that is no UTF-8: {error}") from None


def _bytes(decoder: Decoder, data: Buffer, is_part: bool) -> bytes:
    return bytes(data)


def _bytearray(decoder: Decoder, data: Buffer, is_part: bool) -> bytearray:
    return bytearray(data)


def _array(decoder: Decoder, data: Part, is_part: bool) -> Any:
    dtype, axes, size = _dtype(decoder, 0), decoder.byte(), len(data)
    shape: tuple[int, ...] = ()
    if axes:
        if axes > kinds.MAX_AXES:
            raise WireError(f"an array of {axes} axes; at most {kinds.MAX_AXES} are allowed")
        shape = tuple([decoder.number() for _ in range(axes)])
    if math.prod(shape) * dtype.itemsize != size:
        raise WireError(f"{size} bytes for an array {dtype.name}{list(shape)}")
    if type(data) is DeviceBytes:
        return made(data.array.view, dtype).reshape(shape)
    try:
        array = _over(dtype, shape, data)
    except (ValueError, OverflowError) as error:  # an empty array with axes beyond what NumPy counts
        raise WireError(f"an array {dtype.name}{list(shape)}: {error}") from None
    if is_part and size > kinds.COPIED and decoder.views and array.flags.aligned:
        # `_over` forgets the memoryview, which is what lends the memory; `frombuffer` keeps it alive.
        return Layout(dtype, shape).array(data)
    return array.copy()


def _over(dtype: DType, shape: tuple[int, ...], data: Buffer) -> Any:
    """The array over `data`, without a copy."""
    if kinds.BIG_ENDIAN or not data:
        return Layout(dtype, shape).array(data)
    return _ndarray(shape, dtype, data)


def _blob(read: Callable[[Decoder, Buffer, bool], Any]) -> Reader:
    return lambda decoder, depth: read(decoder, decoder.blob(), False)


_HAVE_BLOBS = {
    kinds.LARGE_INTEGER: _large_integer,
    kinds.ENCODED_TEXT: _encoded_text,
    kinds.BYTES: _bytes,
    kinds.BYTEARRAY: _bytearray,
    kinds.ARRAY: _array,
}


def _part(decoder: Decoder, depth: int) -> Any:
    kind = decoder.byte()
    read = _HAVE_BLOBS.get(kind)
    if read is None:
        raise WireError(f"a part of the frame for a value of kind {kind}, which has no bytes")
    return read(decoder, decoder.part(), True)


# Containers


def _list(decoder: Decoder, depth: int) -> list[Any]:
    return decoder.items(decoder.begin(depth), depth + 1)


def _tuple(decoder: Decoder, depth: int) -> tuple[Any, ...]:
    return tuple(decoder.items(decoder.begin(depth), depth + 1))


def _dict(decoder: Decoder, depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    node, inner, count = decoder.node, depth + 1, decoder.begin(depth, 2)
    if count > MANY:
        items = decoder.items(2 * count, inner)
        keys = items[::2]
        _check_hashes(keys)
        return made(dict, zip(keys, items[1::2]))  # type: ignore[no-any-return]
    for _ in range(count):
        key = node(inner)
        item = node(inner)
        try:
            found[key] = item
        except TypeError as error:
            raise WireError(f"a key of a dict: {error}") from None
    return found


def _set(kind: Callable[[list[Any]], Any]) -> Reader:
    def read(decoder: Decoder, depth: int) -> Any:
        items = decoder.items(decoder.begin(depth), depth + 1)
        if len(items) > MANY:
            _check_hashes(items)
        return made(kind, items)

    return read


def _check_hashes(keys: Sequence[Any]) -> None:
    """Refuses keys that were chosen to have one hash, with which a dict or set takes time without end."""
    if set(map(type, keys)) <= _SALTED:
        return
    try:
        ((_, most),) = Counter(map(hash, keys)).most_common(1)
    except TypeError as error:
        raise WireError(f"a key of a dict or set: {error}") from None
    if most > MANY:
        raise WireError(f"{most} keys of a dict or set have one hash; {MANY} may")


def _steps(kind: Any) -> Reader:
    def read(decoder: Decoder, depth: int) -> Any:
        decoder.nest(depth)
        return made(kind, *decoder.items(3, depth + 1))

    return read


def made(kind: Callable[..., Any], *args: Any) -> Any:
    """What a constructor of Python's or NumPy's makes; WireError if it refuses."""
    try:
        return kind(*args)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"{getattr(kind, '__name__', kind)}: {error}") from None


# Dates and times


def _date(decoder: Decoder, depth: int) -> datetime.date:
    return made(datetime.date.fromisoformat, decoder.text())  # type: ignore[no-any-return]


def _time(kind: Any) -> Reader:
    def read(decoder: Decoder, depth: int) -> Any:
        decoder.nest(depth)
        plain, fold = made(kind.fromisoformat, decoder.text()), decoder.byte()
        zone = decoder.node(depth + 1)
        return made(functools.partial(plain.replace, tzinfo=zone, fold=fold))

    return read


def _duration(decoder: Decoder, depth: int) -> datetime.timedelta:
    days, seconds, micros = [decoder.integer() for _ in range(3)]
    return made(datetime.timedelta, days, seconds, micros)  # type: ignore[no-any-return]


def _fixed_zone(decoder: Decoder, depth: int) -> datetime.timezone:
    decoder.nest(depth)
    offset, name = decoder.items(2, depth + 1)
    return made(datetime.timezone, *((offset,) if name is None else (offset, name)))  # type: ignore[no-any-return]


def _named_zone(decoder: Decoder, depth: int) -> zoneinfo.ZoneInfo:
    name = decoder.text()
    if name not in _zone_names():  # so that a peer's name never becomes the path of a file or package
        raise WireError(f"the time zone {name[:100]!r} is not known here")
    return zoneinfo.ZoneInfo(name)


@functools.cache
def _zone_names() -> set[str]:
    return zoneinfo.available_timezones()


# Arrays, and what goes with them


def _dtype(decoder: Decoder, depth: int) -> DType:
    number = decoder.byte()
    dtype = _DTYPES[number]
    if dtype is None:
        raise WireError(f"no element type has the number {number}")
    return dtype


def _scalar_type(decoder: Decoder, depth: int) -> type:
    return _dtype(decoder, depth).type


def _python_type(decoder: Decoder, depth: int) -> type:
    name = decoder.text()
    kind = kinds.PYTHON_TYPES.get(name)
    if kind is None:
        raise WireError(f"the type {name[:100]!r} does not travel")
    return kind


def _scalar(decoder: Decoder, depth: int) -> Any:
    dtype, data = _dtype(decoder, depth), decoder.blob()
    if len(data) != dtype.itemsize:
        raise WireError(f"{len(data)} bytes for one {dtype.name}")
    return _over(dtype, (), data)[()]


def array_node(decoder: Decoder, depth: int) -> Any:
    """The next node, which has to be an array's."""
    kind = decoder.outline[decoder.at] if decoder.at < len(decoder.outline) else 0
    if kind not in (kinds.ARRAY, kinds.PART, kinds.ON_DEVICE):
        raise WireError("an array has to stand here")
    found = decoder.node(depth)
    if not backend.is_array(found):
        raise WireError(f"an array has to stand here, not {type(found).__name__}")
    return found


def _on_device(decoder: Decoder, depth: int) -> Any:
    """An array on a device of the same kind, where there is one; else in host memory."""
    kind, at = decoder.text(), decoder.at
    if not at < len(decoder.outline) or decoder.outline[at] == kinds.ON_DEVICE:
        raise WireError("an array has to stand here")
    part = decoder.part_on_device() if decoder.outline.startswith(_LARGE_ARRAY, at) else None
    if part is None:
        array = array_node(decoder, depth)
    else:
        decoder.at = at + len(_LARGE_ARRAY)
        array = _array(decoder, part, True)
    try:
        return backend.to_device(array, backend.device(kind))
    except ArgumentError:
        return array


_TABLE: dict[int, Reader] = {
    kinds.NONE: _constant(None),
    kinds.FALSE: _constant(False),
    kinds.TRUE: _constant(True),
    kinds.ELLIPSIS: _constant(...),
    kinds.INTEGER: _integer,
    kinds.REAL: _real,
    kinds.COMPLEX: _complex,
    kinds.TEXT: _text,
    kinds.LIST: _list,
    kinds.TUPLE: _tuple,
    kinds.DICT: _dict,
    kinds.SET: _set(set),
    kinds.FROZENSET: _set(frozenset),
    kinds.SLICE: _steps(slice),
    kinds.RANGE: _steps(range),
    kinds.DATE: _date,
    kinds.TIME: _time(datetime.time),
    kinds.DATETIME: _time(datetime.datetime),
    kinds.DURATION: _duration,
    kinds.FIXED_ZONE: _fixed_zone,
    kinds.NAMED_ZONE: _named_zone,
    kinds.SCALAR: _scalar,
    kinds.DTYPE: _dtype,
    kinds.SCALAR_TYPE: _scalar_type,
    kinds.PYTHON_TYPE: _python_type,
    kinds.PART: _part,
    kinds.ON_DEVICE: _on_device,
    **{kind: _blob(read) for kind, read in _HAVE_BLOBS.items()},
}
teach(_TABLE)
