"""The raw codec: protobuf messages whose last field is `bytes data`, without protobuf touching the data.

Protobuf copies a large `bytes` field several times (0.2-0.3 GB/s measured). Here the header is
serialised by protobuf and the payload follows as tag + length + raw bytes: one copy on the way out,
none on the way in. The result is valid protobuf, so generated stubs in any language read and write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from psframework.errors import ArgumentError, WireError
from psframework.wire.memory import Buffer

M = TypeVar("M", bound=Message)

MAX_MESSAGE: Final = (1 << 31) - 1
"""Protobuf's and gRPC's own bound of one message; larger payloads travel in chunks."""

MAX_HEADER: Final = 16 << 20
"""Default bound of all fields but the data: parsing small fields takes many times their bytes."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def encode(header: Message, data: Buffer | Sequence[Buffer] = b"") -> bytes:
    """The message `header` with `data` as its last field, as protobuf's own serialiser would write it.

    Args:
        header: a message that has a field `bytes data` with the highest number, left unset.
        data: the payload: one C-contiguous buffer, or several that are joined. Empty is left out.

    Raises:
        ArgumentError: the message has no such field, or it is set, or a buffer is not contiguous.
        WireError: the whole would pass 2 GiB, more than one message may hold: send it in chunks.
    """
    number = data_field(type(header))
    if header.data:  # type: ignore[attr-defined]
        raise ArgumentError(f"{type(header).__name__}.data is set; pass the payload as an argument instead")
    buffers = (data,) if isinstance(data, bytes | bytearray | memoryview) else tuple(data)
    nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
    head = header.SerializeToString()
    if nbytes == 0:
        return head
    if len(head) + nbytes + 16 > MAX_MESSAGE:
        raise WireError(f"a message of {nbytes} bytes of data; one message may hold 2 GiB, send it in chunks")
    try:
        return b"".join((head, varint(number << 3 | _BYTES), varint(nbytes), *buffers))
    except (BufferError, TypeError):
        raise ArgumentError(
            "a buffer to send is not C-contiguous; pass it through wire.spec.as_bytes"
        ) from None


def decode(
    message: bytes | memoryview, message_type: type[M], *, max_header: int = MAX_HEADER
) -> tuple[M, memoryview]:
    """Splits a message into its header and its data.

    Reads what any protobuf writer may produce: fields in any order, data missing (empty) or repeated
    (the last one counts).

    Args:
        message: the serialised message.
        message_type: its generated class.
        max_header: bound in bytes of all fields other than the data.

    Returns:
        The message with `data` unset, and a read-only view of the data inside `message`.

    Raises:
        WireError: the bytes are not such a message.
    """
    view = memoryview(message).toreadonly()
    number = data_field(message_type)
    head, data = _split(view, number)
    if len(head) > max_header:
        raise WireError(f"{message_type.__name__} has {len(head)} bytes of header; {max_header} are allowed")
    try:
        return message_type.FromString(head), data
    except (DecodeError, ValueError) as error:
        raise WireError(f"not a {message_type.__name__}: {error}") from None


def varint(value: int) -> bytes:
    """A number as protobuf writes it: 7 bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_data_fields: dict[type[Message], int] = {}


def data_field(message_type: type[Message]) -> int:
    """The number of the message's last field, which must be `bytes data`; else ArgumentError."""
    number = _data_fields.get(message_type)
    if number is None:
        number = _data_fields[message_type] = _find_data_field(message_type)
    return number


def _find_data_field(message_type: type[Message]) -> int:
    descriptor = message_type.DESCRIPTOR
    field = descriptor.fields_by_name.get("data")
    last = max((each.number for each in descriptor.fields), default=0)
    if field is None or field.type != FieldDescriptor.TYPE_BYTES or field.is_repeated or field.number != last:
        raise ArgumentError(f"the last field of {descriptor.full_name} is not `bytes data`")
    return field.number


def _split(view: memoryview, number: int) -> tuple[bytes, memoryview]:
    """The bytes of all other fields, and the last occurrence of field `number`."""
    wanted = number << 3 | _BYTES
    data, others, kept = view[:0], [], 0
    position, end = 0, len(view)
    while position < end:
        start = position
        key, position = _read_varint(view, position, 5)
        length, position = _field_length(view, key, position)
        if length > end - position:
            raise WireError(f"a field of {length} bytes where {end - position} are left")
        if key == wanted:
            others.append(view[kept:start])
            data = view[position : position + length]
            kept = position + length
        position += length
    others.append(view[kept:])
    return (bytes(others[0]) if len(others) == 1 else b"".join(others)), data


def _field_length(view: memoryview, key: int, position: int) -> tuple[int, int]:
    """Bytes that the field's value takes, and where it starts."""
    kind = key & 7
    if key < 8 or key > 0xFFFFFFFF:
        raise WireError("a field without a valid number")
    if kind == _BYTES:
        return _read_varint(view, position, 10)
    if kind == _VARINT:
        return _read_varint(view, position, 10)[1] - position, position
    if kind == _FIXED64:
        return 8, position
    if kind == _FIXED32:
        return 4, position
    raise WireError(f"wire type {kind} is not one of protobuf 3")


def _read_varint(view: memoryview, position: int, longest: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 7 * longest, 7):
        if position >= len(view):
            raise WireError("the message ends inside a number")
        byte = view[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise WireError("a number that does not end")
