"""Every method is an ordinary unary method too: stock stubs call it and see typed errors."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import ArgumentError, NotRegistered, PermissionDenied, RemoteError, WireError
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import Call
from psframework.rpc.options import channel_options
from psframework.rpc.security.credentials import Security
from psframework.rpc.service import Method
from psframework.rpc.session.adapter import gather_parts, has_data, unary_handler
from psframework.rpc.status import from_rpc_error
from psframework.testing.strict_device import strict_devices
from psframework.wire.device_bytes import DeviceBytes


@pytest.fixture
async def channel(office: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(office.address, options=channel_options()) as opened:
        yield opened


class OnDevice:
    """Answers with an array on a device."""

    name = "test.OnDevice"

    def __init__(self, array: Any) -> None:
        self.array = array

    def methods(self) -> Sequence[Method]:
        return [Method("Get", Chunk, Chunk, self.get)]

    def get(self, request: Chunk, call: Call) -> Chunk:
        call.reply_parts([DeviceBytes(self.array)])
        return Chunk()


async def test_arrays_on_a_device_are_bytes_for_a_stock_stub() -> None:
    with strict_devices("gpu-0") as (gpu,):
        handler = unary_handler(OnDevice(gpu.to_device(np.arange(4.0))), Security.plaintext())
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            get = channel.unary_unary(
                "/test.OnDevice/Get",
                request_serializer=Chunk.SerializeToString,
                response_deserializer=Chunk.FromString,
            )
            assert (await get(Chunk())).data == np.arange(4.0).tobytes()
        await server.stop(0)


def stub(channel: grpc.aio.Channel, method: str, kind: Any) -> Any:
    """What a generated stub has for a method."""
    return channel.unary_unary(
        f"/test.Desk/{method}",
        request_serializer=kind.SerializeToString,
        response_deserializer=kind.FromString,
    )


@pytest.mark.parametrize("method", ["Echo", "EchoLater"])
async def test_a_stock_stub_calls_plain_and_async_handlers(channel: Any, method: str) -> None:
    assert (await stub(channel, method, StringValue)(StringValue(value="x"))).value == "x"


@pytest.mark.parametrize("method", ["Mirror", "MirrorNow", "Stream"])
async def test_the_payload_is_the_last_field(channel: Any, method: str) -> None:
    data = bytes(range(256)) * 8192
    reply = await stub(channel, method, Chunk)(Chunk(call=5, data=data))
    assert reply.call == 5 and reply.data == data
    empty = await stub(channel, method, Chunk)(Chunk(call=6))
    assert empty.call == 6 and empty.data == b""


@pytest.mark.parametrize(
    ("method", "code", "error"),
    [
        ("Raise", grpc.StatusCode.UNKNOWN, RemoteError),
        ("Ekko", grpc.StatusCode.UNIMPLEMENTED, NotRegistered),
    ],
)
async def test_errors_have_their_status_and_class(
    channel: Any, method: str, code: grpc.StatusCode, error: type[Exception]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub(channel, method, StringValue)(StringValue(value="x"))
    assert caught.value.code() is code
    assert isinstance(from_rpc_error(caught.value), error)


async def test_bytes_that_are_no_request_are_refused(channel: Any) -> None:
    for method in ("Echo", "Sum"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/test.Desk/{method}")(b"\xff\xff")
        assert isinstance(from_rpc_error(caught.value), WireError)


async def test_a_stub_without_the_token_is_refused(office: Any, channel: Any) -> None:
    from psframework.rpc.security.credentials import Security
    from psframework.rpc.session.adapter import unary_handler

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((unary_handler(office.desk, Security.plaintext("t" * 40)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as stranger:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(stranger, "Echo", StringValue)(StringValue(value="x"))
        assert isinstance(from_rpc_error(caught.value), PermissionDenied)
    friend = Security.plaintext("t" * 40).channel(f"127.0.0.1:{port}")
    assert (await stub(friend, "Echo", StringValue)(StringValue(value="x"))).value == "x"
    await friend.close()
    await server.stop(0)


async def test_an_iterator_must_make_all_parts() -> None:
    async def parts() -> AsyncIterator[tuple[int, bytes]]:
        yield 1, b"b"

    with pytest.raises(ArgumentError, match="announced"):
        await gather_parts(parts(), 2)
    assert await gather_parts([b"a", b"b"], 2) == [b"a", b"b"]


def test_which_messages_carry_a_payload() -> None:
    assert has_data(Chunk) and not has_data(StringValue)
