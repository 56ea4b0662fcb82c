"""Every kind of call shows the token, beside its own metadata."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from psframework.rpc.security.token_channel import TokenChannel, with_token

TOKEN = (("authorization", "Bearer t"),)


def seen(context) -> bytes:
    metadata = dict(context.invocation_metadata())
    return f"{metadata.get('authorization')} {metadata.get('own')}".encode()


async def unary(request, context):
    return seen(context)


async def stream(request, context):
    yield seen(context)


@pytest.fixture(scope="module")
async def address():
    server = grpc.aio.server()
    handlers = {
        "UU": grpc.unary_unary_rpc_method_handler(unary),
        "US": grpc.unary_stream_rpc_method_handler(stream),
        "SU": grpc.stream_unary_rpc_method_handler(unary),
        "SS": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def requests():
    yield b""


async def test_all_four_kinds_of_calls(address):
    async with TokenChannel(grpc.aio.insecure_channel(address), TOKEN) as channel:
        await channel.channel_ready()
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        own = {"metadata": (("own", "1"),), "timeout": 5}
        assert await channel.unary_unary("/t.T/UU")(b"", timeout=5) == b"Bearer t None"
        assert await channel.unary_unary("/t.T/UU")(b"", **own) == b"Bearer t 1"
        assert [part async for part in channel.unary_stream("/t.T/US")(b"", **own)] == [b"Bearer t 1"]
        assert await channel.stream_unary("/t.T/SU")(requests(), **own) == b"Bearer t 1"
        assert [part async for part in channel.stream_stream("/t.T/SS")(requests(), **own)] == [b"Bearer t 1"]


async def test_a_synchronous_channel(address):
    def call() -> list[bytes]:
        with with_token(grpc.insecure_channel(address), TOKEN) as channel:
            first = channel.unary_unary("/t.T/UU")(b"", timeout=5, metadata=(("own", "1"),))
            return [first, *channel.unary_stream("/t.T/US")(b"", timeout=5)]

    assert await asyncio.to_thread(call) == [b"Bearer t 1", b"Bearer t None"]
