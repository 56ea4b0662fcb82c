"""A server as operators meet it: addresses, health, reflection, limits, hostile bytes, signals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psframework.errors import AddressInUse, ConfigurationError, PeerLost, PermissionDenied, ResourceExhausted
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, parse_address, serve
from psframework.rpc.status import from_rpc_error

SERVING = health_pb2.HealthCheckResponse.SERVING
PLAIN = Security.plaintext()


async def echo(request, context):
    return request


def handlers(**more):
    functions = {"Echo": echo, **more}
    table = {name: grpc.unary_unary_rpc_method_handler(function) for name, function in functions.items()}
    return [grpc.method_handlers_generic_handler("t.T", table)]


def quiet(**kwargs):
    return ServeOptions(announce=False, **kwargs)


@asynccontextmanager
async def served(*, security=PLAIN, bind="127.0.0.1:0", more=(), **options):
    async with serve(
        handlers(**dict(more)), bind=bind, security=security, options=quiet(**options)
    ) as server:
        yield server


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (gRPC tells nobody)
            await asyncio.sleep(0.001)


async def check(channel, service="") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)).status


async def listed(channel) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(timeout=10)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    reply = await call.read()
    call.cancel()
    return {service.name for service in reply.list_services_response.service}


async def test_health_and_reflection_need_no_token_on_loopback():
    async with served(security=Security.plaintext("secret"), service_names=("late.Service",)) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert await check(channel) == await check(channel, "t.T") == SERVING
            assert {"t.T", "late.Service", "grpc.health.v1.Health"} <= await listed(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/t.T/Echo")(b"", timeout=10)
            assert isinstance(from_rpc_error(caught.value), PermissionDenied)
            await server.set_serving(False)
            assert await check(channel) != SERVING


async def test_with_tls_health_needs_token_and_certificate(tmp_path):
    certificates.init(tmp_path)
    folder = certificates.issue(tmp_path, "coordinator")
    async with served(security=Security.from_files(folder, "secret")) as server:
        async with Security.from_files(folder).channel(server.address, role="coordinator") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await check(channel)
            assert isinstance(from_rpc_error(caught.value), PermissionDenied)
        async with Security.from_files(folder, "secret").channel(
            server.address, role="coordinator"
        ) as channel:
            assert await check(channel) == SERVING


async def test_a_generated_servicer_is_mounted_and_listed():
    class Health(health_pb2_grpc.HealthServicer):
        pass

    def add(servicer, server):
        server.add_generic_rpc_handlers(tuple(handlers()))
        server.add_registered_method_handlers(
            "t.Generated", {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
        )

    async with serve(servicers=[(add, Health())], security=PLAIN, options=quiet()) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert await channel.unary_unary("/t.Generated/Echo")(b"a", timeout=10) == b"a"
            assert "t.Generated" in await listed(channel)


async def test_a_taken_port_is_told_at_once(capfd):
    async with served() as first:
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{first.port} is taken"):
            async with served(bind=first.address):
                pass
        with pytest.raises(AddressInUse, match="port-range"):
            async with served(port_range=(first.port, first.port)):
                pass
    assert "add_port" not in capfd.readouterr().err, "gRPC's own words would stand beside ours"


async def test_twenty_servers_share_a_range_without_collisions():
    with socket.socket() as probe:  # some free neighbourhood; the range is wide enough for strangers in it
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 65000)
    ports = set()

    async def one(ready: asyncio.Barrier):
        async with served(port_range=(first, first + 200)) as server:
            ports.add(server.port)
            await ready.wait()

    ready = asyncio.Barrier(20)
    await asyncio.gather(*(one(ready) for _ in range(20)))
    assert len(ports) == 20 and all(first <= port <= first + 200 for port in ports)


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        ("127.0.0.1", "HOST:PORT"),
        ("127.0.0.1:x", "HOST:PORT"),
        ("127.0.0.1:70000", "65535"),
        ("::1:80", "brackets"),
        ("192.0.2.1:0", "can't be bound"),
        ("no-such-host.invalid:0", "unknown"),
    ],
)
async def test_bad_addresses(bind, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        async with served(bind=bind, plaintext_ok=True):
            pass
    assert not isinstance(caught.value, AddressInUse)


async def test_plaintext_for_other_machines_needs_the_flag():
    with pytest.raises(ConfigurationError, match="--tls-dir"):
        async with served(bind="0.0.0.0:0"):
            pass
    async with served(bind="0.0.0.0:0", plaintext_ok=True, security=Security.plaintext("secret")) as server:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            with pytest.raises(
                grpc.aio.AioRpcError
            ):  # not only loopback reaches it: health asks for the token
                await check(channel)


@pytest.mark.parametrize("bad", [(0, 5), (9, 5), (5, 70000)])
async def test_bad_port_ranges(bad):
    with pytest.raises(ConfigurationError, match="port range"):
        async with served(port_range=bad):
            pass


def test_addresses():
    assert parse_address("h:1") == ("h", 1) and parse_address("[::1]:0") == ("[::1]", 0)
    assert parse_address(":5") == ("0.0.0.0", 5)


async def test_a_request_over_the_limit_is_refused_and_the_server_lives():
    async with served(max_request=1000) as server:
        async with PLAIN.channel(server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/t.T/Echo")(b"x" * 2000, timeout=10)
            assert isinstance(from_rpc_error(caught.value), ResourceExhausted)
            assert await channel.unary_unary("/t.T/Echo")(b"x" * 900, timeout=10) == b"x" * 900


async def test_calls_over_the_limit_are_refused():
    entered, release = asyncio.Event(), asyncio.Event()

    async def hold(request, context):
        entered.set()
        await release.wait()
        return b""

    async with served(max_concurrent=1, more={"Hold": hold}) as server:
        async with PLAIN.channel(server.address) as channel:
            holding = channel.unary_unary("/t.T/Hold")(b"", timeout=10)
            await entered.wait()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/t.T/Echo")(b"", timeout=10)
            assert isinstance(from_rpc_error(caught.value), ResourceExhausted)
            release.set()
            await holding


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


HUGE_MESSAGE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + http2(4, 0, 0, b"")
    + http2(
        1,
        4,
        1,
        literal(b":method", b"POST")
        + literal(b":scheme", b"http")
        + literal(b":path", b"/t.T/Echo")
        + literal(b":authority", b"x")
        + literal(b"te", b"trailers")
        + literal(b"content-type", b"application/grpc"),
    )
    + http2(0, 0, 1, b"\x00\xff\xff\xff\xff" + b"x" * 100)  # a message that claims 4 GiB
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4096),
        b"\x16\x03\x01\x02\x00" * 50,
        HUGE_MESSAGE,
    ],
    ids=["nothing", "zeros", "http1", "random", "tls", "4GiB-message"],
)
async def test_bytes_of_strangers_do_not_harm_others(data):
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(data)
        await writer.drain()
        if (
            data == HUGE_MESSAGE
        ):  # refused by its length alone: RST_STREAM or a status, well before 4 GiB came
            await asyncio.wait_for(reader.read(1000), 10)
        async with PLAIN.channel(server.address) as channel:
            assert await channel.unary_unary("/t.T/Echo")(b"alive", timeout=10) == b"alive"
        writer.close()


async def test_draining_lets_running_calls_end_and_refuses_new_ones():
    entered, release = asyncio.Event(), asyncio.Event()

    async def hold(request, context):
        entered.set()
        await release.wait()
        return b"done"

    async with served(more={"Hold": hold}, drain_seconds=10) as server:
        stopped = asyncio.ensure_future(server.wait_stopped())
        async with PLAIN.channel(server.address) as channel, PLAIN.channel(server.address) as late:
            holding = channel.unary_unary("/t.T/Hold")(b"", timeout=10)
            await entered.wait()
            server.request_stop()
            await until(lambda: server._guard.draining)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await late.unary_unary("/t.T/Echo")(b"", timeout=10)
            refused = from_rpc_error(caught.value)
            assert isinstance(refused, PeerLost) and not refused.may_have_run
            assert await check(late) == health_pb2.HealthCheckResponse.NOT_SERVING
            assert not stopped.done()
            release.set()
            assert await holding == b"done"
            started = time.monotonic()
            await stopped
            assert time.monotonic() - started < 5  # it does not sit out the rest of its 10 s


async def test_what_runs_longer_than_the_drain_time_is_cut_off():
    async def forever(request, context):
        await asyncio.Event().wait()

    async with served(more={"Forever": forever}, drain_seconds=0.2) as server:
        async with PLAIN.channel(server.address) as channel:
            running = channel.unary_unary("/t.T/Forever")(b"", timeout=30)
            await until(lambda: server._guard.running)
            server.request_stop()
            await server.wait_stopped()
            with pytest.raises(grpc.aio.AioRpcError):
                await running


MAIN = """
import asyncio, sys, time
from psframework.observe.logs import configure_logging
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import serve, ServeOptions

async def main():
    options = ServeOptions(drain_seconds=0.2, exit_seconds={exit_seconds})
    async with serve(security=Security.plaintext(), options=options) as server:
        asyncio.get_running_loop().call_later({delay}, {then})
        await server.wait_stopped()
        {after}
    print("ended in order", flush=True)

configure_logging(fmt={fmt!r})
asyncio.run(main())
"""


@asynccontextmanager
async def process(then="int", after="pass", fmt="logfmt", exit_seconds=5, delay=0.5):
    code = MAIN.format(then=then, after=after, fmt=fmt, exit_seconds=exit_seconds, delay=delay)
    command = [sys.executable, "-u", "-c", code]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        first = child.stdout.readline()
        address = re.search(r"serving on (127\.0\.0\.1:\d+)", first).group(1)
        async with grpc.aio.insecure_channel(address) as channel:
            assert await check(channel) == SERVING  # now it waits for signals
        yield child, first
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("fmt", ["logfmt", "json"])
async def test_the_first_line_and_the_first_signal(number, fmt):
    async with process(fmt=fmt) as (child, first):
        assert fmt == "json" or first.startswith("serving on ")
        child.send_signal(number)
        assert await asyncio.to_thread(child.wait, 10) == 0
        assert "ended in order" in child.stdout.read()


async def test_the_second_signal_ends_at_once():
    async with process(after="await asyncio.sleep(60)") as (child, _):
        child.send_signal(signal.SIGTERM)
        assert "draining" in child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, 10) == 128 + signal.SIGTERM


async def test_a_process_whose_loop_hangs_ends_all_the_same():
    block = "lambda: print('blocking', flush=True) or time.sleep(60)"
    async with process(then=block, exit_seconds=0.5) as (child, _):
        assert child.stdout.readline() == "blocking\n"
        child.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, 10) == 128 + signal.SIGTERM
