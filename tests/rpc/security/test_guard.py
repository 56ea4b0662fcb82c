"""Admission and failures of ordinary calls, over a real server."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import structlog

from psframework import errors
from psframework.errors import NotRegistered, PermissionDenied, WireError
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.guard import require_roles
from psframework.rpc.serve import ServeOptions, serve
from psframework.rpc.status import from_rpc_error

QUIET = ServeOptions(announce=False)


async def echo(request, context):
    return request


@require_roles("coordinator", "admin")
async def drain(request, context):
    return b"drained"


async def fail(request, context):
    raise errors.RolledBack("gone back", step=4)


async def crash(request, context):
    return {}["missing"]


async def choose(request, context):
    await context.abort(grpc.StatusCode.OUT_OF_RANGE, "own words")


async def count(request, context):
    for i in range(3):
        yield bytes([i])
    raise errors.WireError("after three")


async def wait(request, context):
    await asyncio.Event().wait()


async def echo_stream(requests, context):
    async for request in requests:
        await context.write(request)


UNARY = {"Echo": echo, "Drain": drain, "Fail": fail, "Crash": crash, "Choose": choose, "Wait": wait}
HANDLERS = {name: grpc.unary_unary_rpc_method_handler(function) for name, function in UNARY.items()} | {
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Typed": grpc.unary_unary_rpc_method_handler(echo, int, lambda number: b"%d" % number),
    "TypedCount": grpc.unary_stream_rpc_method_handler(count, int),
    "EchoStream": grpc.stream_stream_rpc_method_handler(echo_stream),
}


def handlers():
    return [grpc.method_handlers_generic_handler("t.T", HANDLERS)]


@pytest.fixture(scope="module")
async def address():
    async with serve(handlers(), security=Security.plaintext("secret"), options=QUIET) as server:
        yield server.address


async def call(address, method, security=None, *, data=b"x", **kwargs):
    async with (security or Security.plaintext("secret")).channel(address, **kwargs) as channel:
        try:
            return await channel.unary_unary(method)(data, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


async def test_good_calls_pass_and_are_not_logged(address):
    with structlog.testing.capture_logs() as lines:
        assert await call(address, "/t.T/Echo") == b"x"
        assert await call(address, "/t.T/Drain") == b"drained"  # no TLS: the token alone decides
    assert lines == []


@pytest.mark.parametrize("method", ["/t.T/Typed", "/t.T/TypedCount"])
async def test_bytes_that_are_no_request(address, method):
    with pytest.raises(WireError, match=f"{method}: 2 bytes that are no request: invalid literal"):
        await call(address, method, data=b"no")
    assert await call(address, "/t.T/Typed", data=b"7") == b"7"


async def test_a_wrong_token_never_reaches_the_handler(address):
    with pytest.raises(PermissionDenied):
        await call(address, "/t.T/Echo", Security.plaintext("other"))


@pytest.mark.parametrize(
    ("method", "expected", "level"),
    [
        ("Fail", errors.RolledBack, "warning"),
        ("Crash", errors.RemoteError, "error"),
        ("Choose", ValueError, "warning"),
    ],
)
async def test_a_failure_is_one_log_line_and_a_typed_error(address, method, expected, level):
    with structlog.testing.capture_logs() as lines:
        with pytest.raises(expected) as caught:
            await call(address, f"/t.T/{method}")
    (line,) = lines
    assert (
        line["event"] == "call failed" and line["method"] == f"/t.T/{method}" and line["log_level"] == level
    )
    assert line["peer"].startswith("ipv4:") and line["milliseconds"] >= 0
    if method == "Crash":
        assert isinstance(caught.value, KeyError) and "missing" in caught.value.remote_traceback
        assert isinstance(line["exc_info"], KeyError) and line["code"] == "UNKNOWN"
    if method == "Choose":
        assert line["code"] == "OUT_OF_RANGE" and line["error"] == "own words"


async def test_unknown_methods_list_what_is_there(address):
    with structlog.testing.capture_logs() as lines:
        with pytest.raises(NotRegistered, match=r"t\.T"):
            await call(address, "/t.t/Echo")
    assert len(lines) == 1


async def test_streams_keep_their_kind(address):
    async with Security.plaintext("secret").channel(address) as channel:
        stream = channel.stream_stream("/t.T/EchoStream")(timeout=10)
        await stream.write(b"1")
        assert await stream.read() == b"1"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        got = []
        with structlog.testing.capture_logs() as lines:
            with pytest.raises(grpc.aio.AioRpcError) as caught:  # noqa: PT012
                async for part in channel.unary_stream("/t.T/Count")(b"", timeout=10):
                    got.append(part)  # noqa: PERF401
        assert got == [b"\0", b"\1", b"\2"] and isinstance(from_rpc_error(caught.value), errors.WireError)
        assert len(lines) == 1


async def test_a_caller_that_gives_up_is_no_failure(address):
    with structlog.testing.capture_logs() as lines:
        async with Security.plaintext("secret").channel(address) as channel:
            waiting = channel.unary_unary("/t.T/Wait")(b"", timeout=30)
            assert await channel.unary_unary("/t.T/Echo")(b"y", timeout=10) == b"y"
            waiting.cancel()
    assert lines == []


async def test_roles_of_marked_methods(tmp_path):
    certificates.init(tmp_path)
    server_side = Security.from_files(certificates.issue(tmp_path, "parameter-server"))
    worker = Security.from_files(certificates.issue(tmp_path, "worker"))
    admin = Security.from_files(certificates.issue(tmp_path, "admin"))
    async with serve(handlers(), security=server_side, options=QUIET) as server:
        assert await call(server.address, "/t.T/Drain", admin, role="parameter-server") == b"drained"
        assert await call(server.address, "/t.T/Echo", worker, role="parameter-server") == b"x"
        with pytest.raises(PermissionDenied, match=r"'worker'; /t.T/Drain needs 'admin' or 'coordinator'"):
            await call(server.address, "/t.T/Drain", worker, role="parameter-server")
