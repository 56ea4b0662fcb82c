"""The raw codec against protobuf itself: byte for byte, on real gRPC with stock stubs, and on garbage."""

import importlib
import sys
import tracemalloc
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

import psframework.proto.v1.tensor_pb2 as tensor_pb2
from psframework.errors import ArgumentError, WireError
from psframework.proto.v1.tensor_pb2 import ArraySpec, SegmentRange, Tensor
from psframework.wire import codec
from psframework.wire.spec import Layout, as_bytes

PROTO = """
syntax = "proto3";
package psframework.tests.wire;
import "psframework/proto/v1/tensor.proto";
service EchoService {
  rpc Echo(psframework.proto.v1.Tensor) returns (psframework.proto.v1.Tensor);
  rpc Stream(stream psframework.proto.v1.Tensor) returns (stream psframework.proto.v1.Tensor);
}
"""
SERVICE = "psframework.tests.wire.EchoService"
SIZES = [0, 1, 127, 128, 65_536, 3_000_001]


def tensor(nbytes):
    array = (np.arange(nbytes) % 251).astype(np.uint8)
    return Tensor(spec=Layout.of(array).to_message()), array


# --- against protobuf, in this process ------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
def test_encodes_what_protobuf_encodes(nbytes):
    header, array = tensor(nbytes)
    assert (
        codec.encode(header, as_bytes(array))
        == Tensor(spec=header.spec, data=array.tobytes()).SerializeToString()
    )


@pytest.mark.parametrize("nbytes", SIZES)
def test_decodes_what_protobuf_encodes(nbytes):
    header, array = tensor(nbytes)
    message = Tensor(spec=header.spec, data=array.tobytes()).SerializeToString()
    found, data = codec.decode(message, Tensor)
    assert found == header
    assert data == array.tobytes()
    assert data.readonly


def test_data_is_a_view_of_the_message():
    message = bytearray(codec.encode(Tensor(), bytes(1000)))
    _, data = codec.decode(memoryview(message), Tensor)
    message[-1] = 7
    assert data[-1] == 7


def test_several_buffers_are_joined():
    header, _ = tensor(3)
    assert codec.encode(header, [b"ab", memoryview(b"c"), bytearray()]) == codec.encode(header, b"abc")


def test_fields_may_come_in_any_order_and_twice():
    header, _ = tensor(3)
    spec_only = header.SerializeToString()
    first, second = codec.encode(Tensor(), b"first"), codec.encode(Tensor(), b"second!")
    for message in (first + spec_only + second, first + second + spec_only, spec_only + first + second):
        found, data = codec.decode(message, Tensor)
        assert found == header
        assert data == b"second!" == Tensor.FromString(message).data


def test_unknown_fields_of_newer_writers_are_kept():
    extra = b"\xa0\x06\x07" + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh"  # fields 100: varint, 32 bits, 64 bits
    found, data = codec.decode(codec.encode(Tensor(), b"x") + extra, Tensor)
    assert data == b"x"
    assert found.SerializeToString() == extra


def test_wrong_use_is_named():
    with pytest.raises(ArgumentError, match="is set"):
        codec.encode(Tensor(data=b"x"), b"y")
    for message in (ArraySpec(), SegmentRange()):
        with pytest.raises(ArgumentError, match="last field"):
            codec.encode(message, b"")
    with pytest.raises(ArgumentError, match="contiguous"):
        codec.encode(Tensor(), np.zeros((4, 4), np.uint8)[:, ::2].data)


def test_more_than_a_message_may_hold_is_refused_before_the_copy():
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 20,), (0,))
    with pytest.raises(WireError, match="in chunks"):
        codec.encode(Tensor(), [huge.data] * 2048)


# --- garbage ---------------------------------------------------------------------------------------


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("length", [10 << 30, 1 << 31, 1 << 63, (1 << 64) - 1, 5])
@pytest.mark.parametrize("field", [1, 15, 200])
def test_a_length_beyond_the_message_is_refused_without_allocating(length, field):
    message = varint(field << 3 | 2) + varint(length) + b"1234"
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            codec.decode(message, Tensor)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_header_beyond_its_bound_is_refused():
    message = ArraySpec(dtype="x" * 2000).SerializeToString()
    with pytest.raises(WireError, match="of header"):
        codec.decode(varint(1 << 3 | 2) + varint(len(message)) + message, Tensor, max_header=1000)


field = st.one_of(
    st.builds(
        lambda n, v: varint(n << 3) + varint(v), st.sampled_from([1, 2, 15]), st.integers(0, 2**64 - 1)
    ),
    st.builds(
        lambda n, b: varint(n << 3 | 2) + varint(len(b)) + b,
        st.sampled_from([1, 15, 15, 99]),
        st.one_of(
            st.binary(max_size=20),
            st.builds(
                lambda d, s: ArraySpec(dtype=d, shape=s).SerializeToString(),
                st.text(max_size=5),
                st.just([3]),
            ),
        ),
    ),
    st.binary(max_size=6),
)
messages = st.one_of(st.binary(max_size=64), st.lists(field, max_size=6).map(b"".join))


@given(messages, st.integers(0, 3))
def test_any_bytes_decode_as_protobuf_does_or_are_refused(message, cut):
    message = message[: len(message) - cut]
    stock, ours = attempt(Tensor.FromString, message), attempt(lambda raw: codec.decode(raw, Tensor), message)
    if isinstance(ours, WireError):
        # Groups are the one thing that protobuf still reads and we don't.
        assert isinstance(stock, DecodeError) or "wire type" in str(ours)
        return
    header, data = ours
    assert data == stock.data
    stock.ClearField("data")
    assert header == stock


def attempt(read, message):
    try:
        return read(message)
    except (DecodeError, WireError) as error:
        return error


# --- with stock stubs, on the wire -------------------------------------------------------------------


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """Generated modules (messages' and stubs') of PROTO, made by the ordinary compiler."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "raw_codec_echo.proto").write_text(PROTO)
    protos = Path(tensor_pb2.__file__).parents[3] / "protos"
    arguments = [f"-I{folder}", f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *arguments, "raw_codec_echo.proto"]) == 0
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("raw_codec_echo_pb2_grpc")
    finally:
        sys.path.remove(str(folder))
        for name in ("raw_codec_echo_pb2", "raw_codec_echo_pb2_grpc"):
            sys.modules.pop(name, None)


def raw_echo(message):
    """What our side does: split, and answer with the same array, one larger."""
    header, data = codec.decode(message, Tensor)
    array = Layout.from_message(header.spec).array(data)
    return codec.encode(header, as_bytes(array + np.uint8(1)))


def raw_handlers():
    async def unary(request, _):
        return raw_echo(request)

    async def stream(requests, _):
        async for request in requests:
            yield raw_echo(request)

    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


class serving:
    """A real server on a free port, and a channel to it."""

    def __init__(self, register):
        self.server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        register(self.server)

    async def __aenter__(self):
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        options = [("grpc.max_receive_message_length", -1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        return self.channel

    async def __aexit__(self, *_):
        await self.channel.close()
        await self.server.stop(None)


def check(reply, array):
    assert reply.spec.shape == [array.size]
    assert reply.data == (array + np.uint8(1)).tobytes()


async def test_stock_stub_talks_to_raw_server(echo):
    async with serving(lambda server: server.add_generic_rpc_handlers([raw_handlers()])) as channel:
        stub = echo.EchoServiceStub(channel)
        for nbytes in SIZES:
            header, array = tensor(nbytes)
            check(await stub.Echo(Tensor(spec=header.spec, data=array.tobytes())), array)
        arrays = [tensor(nbytes) for nbytes in SIZES]
        call = stub.Stream(iter([Tensor(spec=h.spec, data=a.tobytes()) for h, a in arrays]))
        for (_, array), reply in zip(arrays, [reply async for reply in call], strict=True):
            check(reply, array)


async def test_raw_client_talks_to_stock_server(echo):
    class Stock(echo.EchoServiceServicer):
        async def Echo(self, request, context):
            array = np.frombuffer(request.data, np.uint8) + np.uint8(1)
            return Tensor(spec=request.spec, data=array.tobytes())

        async def Stream(self, requests, context):
            async for request in requests:
                yield await self.Echo(request, context)

    def parsed(reply):
        header, data = codec.decode(reply, Tensor)
        return Tensor(spec=header.spec, data=bytes(data))

    async with serving(lambda server: echo.add_EchoServiceServicer_to_server(Stock(), server)) as channel:
        unary = channel.unary_unary(f"/{SERVICE}/Echo")
        for nbytes in SIZES:
            header, array = tensor(nbytes)
            check(parsed(await unary(codec.encode(header, as_bytes(array)))), array)
        arrays = [tensor(nbytes) for nbytes in SIZES]
        call = channel.stream_stream(f"/{SERVICE}/Stream")(
            iter([codec.encode(h, as_bytes(a)) for h, a in arrays])
        )
        for (_, array), reply in zip(arrays, [reply async for reply in call], strict=True):
            check(parsed(reply), array)
