"""Services as ordinary unary gRPC methods, for stock stubs in any language.

The bulk payload is the message's last field, `bytes data`, which the raw codec reads and writes. A message
with a field `repeated uint64 part_sizes` says how its data splits into parts; otherwise all is one part.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from psframework.errors import ArgumentError, DeadlineExceeded, PsfError, WireError
from psframework.rpc.call import NO_PAYLOAD, Call, Incoming, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.audit import authorize
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.identity import identity
from psframework.rpc.service import Method, Service
from psframework.rpc.session.payload import byte_views
from psframework.rpc.status import abort
from psframework.wire import codec
from psframework.wire.device_bytes import Part
from psframework.wire.memory import Buffer

SIZES = "part_sizes"


def unary_handler(service: Service, security: Security) -> grpc.GenericRpcHandler:
    """All methods of a service, as a handler for a grpc.aio server; gRPC itself sees only bytes."""
    handlers: dict[str, Any] = {}
    for method in service.methods():
        path = f"/{service.name}/{method.name}"
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(_unary(method, path, security))
    return grpc.method_handlers_generic_handler(service.name, handlers)


def _unary(method: Method, path: str, security: Security) -> Any:
    async def serve(data: bytes, context: Any) -> bytes:
        try:
            security.check_token(context.invocation_metadata() or ())
            call = _call(context)
            if call.peer.certificate_name is not None:  # without TLS the token alone vouches
                authorize(call.peer, method.roles, path)
            message, call.payload = _read(data, method.request_type)
            response = method.handler(message, call)
            if inspect.isawaitable(response):
                response = await response
            assert isinstance(response, Message)
            return await _write(response, call)
        except Exception as error:
            if isinstance(error, TimeoutError) and not isinstance(error, PsfError):
                error = DeadlineExceeded(f"{path} ran into its deadline")
            await abort(context, error)

    return serve


def _call(context: Any) -> Call:
    holder = identity(context)
    name, role = (holder.name, holder.role) if holder else (context.peer(), "")
    peer = PeerInfo(name, role, "", 0, holder.uri if holder else None)
    return Call(peer, Deadline.after(context.time_remaining()))


def _read(data: bytes, request_type: type[Message]) -> tuple[Message, Incoming]:
    if not has_data(request_type):
        try:
            return request_type.FromString(data), NO_PAYLOAD
        except DecodeError as error:
            raise WireError(f"not a {request_type.__name__}: {error}") from None
    message, view = codec.decode(data, request_type)
    if not len(view):
        return message, NO_PAYLOAD
    sizes = tuple(getattr(message, SIZES, ())) or (len(view),)
    return message, Incoming(sizes, _split(view, sizes))


def _split(view: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    if sum(sizes) != len(view):
        raise WireError(f"{len(view)} bytes of data, but {SIZES} adds up to {sum(sizes)}")
    parts, begin = [], 0
    for size in sizes:
        parts.append(view[begin : begin + size])
        begin += size
    return parts


async def _write(response: Message, call: Call) -> bytes:
    if not call.reply_sizes:
        return response.SerializeToString()
    if not has_data(type(response)):
        raise ArgumentError(f"{type(response).__name__} has no last field `bytes data` for its payload")
    parts = byte_views(await gather_parts(call.reply, len(call.reply_sizes)))
    if SIZES in response.DESCRIPTOR.fields_by_name:
        getattr(response, SIZES)[:] = call.reply_sizes
    return codec.encode(response, parts)


async def gather_parts(parts: Sequence[Part] | AsyncIterator[tuple[int, Buffer]], count: int) -> list[Part]:
    """All parts of a reply, in order; runs the iterator if it is one."""
    if not isinstance(parts, AsyncIterator):
        return list(parts)
    found = {index: part async for index, part in parts}
    if sorted(found) != list(range(count)):
        raise ArgumentError(f"the reply's iterator made parts {sorted(found)} of {count} announced")
    return [found[index] for index in range(count)]


def has_data(message_type: type[Message]) -> bool:
    """Whether the message can carry a bulk payload."""
    try:
        codec.data_field(message_type)
    except ArgumentError:
        return False
    return True
