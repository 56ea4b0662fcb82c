"""Runs a gRPC server: binding, health, reflection, limits, and an orderly end on SIGTERM.

async with serve(agent.handlers(), bind="127.0.0.1:0", security=security) as server:
    await server.wait_stopped()
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from psframework.errors import AddressInUse, ConfigurationError
from psframework.observe.logs import announce, get_logger
from psframework.rpc.options import MAX_MESSAGE, server_options
from psframework.rpc.security.credentials import Security, is_loopback
from psframework.rpc.security.guard import Guard

DRAIN_SECONDS = 3.0
EXIT_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_OPEN_SERVICES = (health.SERVICE_NAME, reflection.SERVICE_NAME)
Servicers = Sequence[tuple[Callable[..., None], object]]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Limits and manners of a server.

    Args:
        port_range: first and last port to try, where the bind address has port 0; None for any free one.
        plaintext_ok: serve plaintext beyond loopback, since another layer encrypts.
        max_request: largest request, in bytes.
        max_concurrent: calls and streams that may be open at once; more are told RESOURCE_EXHAUSTED.
        drain_seconds: how long running calls may go on after SIGTERM.
        announce: write the line `serving on HOST:PORT`.
        service_names: services to list by reflection and health beside those that handlers tell.
        exit_seconds: the process ends this long after the first signal, whatever hangs.
        idle: tells whether nothing runs on open call streams, so that draining may end early.
    """

    port_range: tuple[int, int] | None = None
    plaintext_ok: bool = False
    max_request: int = MAX_MESSAGE
    max_concurrent: int = 16384
    drain_seconds: float = DRAIN_SECONDS
    exit_seconds: float = EXIT_SECONDS
    announce: bool = True
    service_names: tuple[str, ...] = ()
    idle: Callable[[], bool] | None = None


class Serving:
    """A server that runs. Made by `serve`.

    Attributes:
        address: HOST:PORT as bound.
        host: its host part.
        port: its port.
        draining: set when the server is about to end: take no new work.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        guard: Guard,
        health_servicer: health.aio.HealthServicer,
        address: tuple[str, int],
        options: ServeOptions,
    ):
        self.host, self.port = address
        self.address = f"{self.host}:{self.port}"
        self.draining = asyncio.Event()
        self._server = server
        self._guard = guard
        self._health = health_servicer
        self._options = options
        self._loop = asyncio.get_running_loop()  # which does not run any more when it cancels all tasks
        self._stopped = self._abandoned = False

    async def set_serving(self, serving: bool) -> None:
        """Changes what health checks are told."""
        states = health_pb2.HealthCheckResponse
        await self._health.set("", states.SERVING if serving else states.NOT_SERVING)

    def request_stop(self) -> None:
        """Begins to drain, as SIGTERM does; call it on the loop."""
        self.draining.set()

    async def wait_stopped(self) -> None:
        """Waits for SIGTERM or SIGINT (or `request_stop`), drains, and stops the server.

        Drained: new calls are refused, health says NOT_SERVING, running ones have `drain_seconds`. A second
        signal ends the process at once, and so does hanging for `exit_seconds` after the first one.
        """
        with _signals(asyncio.get_running_loop(), self.request_stop, self._options.exit_seconds):
            await self.draining.wait()
            get_logger("psframework.rpc.serve").info("draining", calls=self._guard.running)
            await self.stop(self._options.drain_seconds)

    async def stop(self, grace: float = 0.0) -> None:
        """Stops: no new calls from now on, and running ones are cut off after `grace` seconds."""
        if self._stopped:
            return
        self._stopped = True
        self.draining.set()
        self._guard.draining = True
        if self._abandoned:
            return
        try:
            await self._health.enter_graceful_shutdown()
            end = time.monotonic() + grace
            while not self._idle() and time.monotonic() < end:  # noqa: ASYNC110 (idle() is of others)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            # gRPC's own grace is not used: shortening it by a second stop() now and then crashes the process.
            await self._server.stop(None)

    def abandon(self) -> None:
        """The loop ends, and has cancelled gRPC's own tasks: the server can't be stopped any more, nor freed.

        Stopping it would crash the process, and freeing it would wait for ever for what can't come. So a
        reference is leaked that even the interpreter's end does not clear.
        """
        if not self._stopped and not self._abandoned:
            self._abandoned = True
            for each in (self._server, *_awaited_calls(self._loop)):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))

    def _idle(self) -> bool:
        if self._guard.running:
            return False
        return self._options.idle() if self._options.idle else not self._guard.streams


@asynccontextmanager
async def serve(
    handlers: Sequence[grpc.GenericRpcHandler] = (),
    *,
    servicers: Servicers = (),
    bind: str = "127.0.0.1:0",
    security: Security,
    options: ServeOptions = ServeOptions(),
) -> AsyncIterator[Serving]:
    """Serves until the block is left.

    Args:
        handlers: generic handlers, such as `Agent.handlers()`.
        servicers: pairs of a generated `add_XServicer_to_server` and the servicer.
        bind: HOST:PORT; port 0 takes a free one.
        security: certificates and token; with TLS every client must show a certificate.
        options: limits.

    Raises:
        AddressInUse: another process has the port, or the whole port range is taken.
        ConfigurationError: an address that can't be bound, or plaintext beyond loopback without the flag.
    """
    host, port = parse_address(bind)
    security.check_bind(host, plaintext_ok=options.plaintext_ok)
    known: list[str] = [*options.service_names]
    open_services = _OPEN_SERVICES if security.tls is None and is_loopback(host) else ()
    guard = Guard(security, open_services, known)
    server = grpc.aio.server(
        interceptors=[guard],
        options=server_options(max_message=options.max_request),
        maximum_concurrent_rpcs=options.max_concurrent,
    )
    health_servicer = health.aio.HealthServicer()
    everything = [*servicers, (health_pb2_grpc.add_HealthServicer_to_server, health_servicer)]
    await _mount(server, handlers, everything, known, health_servicer)
    port = _bind(server, host, _ports(port, options.port_range), security)
    await server.start()
    serving = Serving(server, guard, health_servicer, (host, port), options)
    if options.announce:
        announce(f"serving on {serving.address}")
    watch = asyncio.create_task(_watch_the_loop(serving), name="psf-server")
    try:
        yield serving
    finally:
        try:
            await serving.stop()
        finally:  # also when it is cancelled while it stops
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


async def _watch_the_loop(serving: Serving) -> None:
    """Notices that the program ends without leaving the block: `asyncio.run` cancels all tasks then."""
    alarm = _Alarm()
    alarm.rings = serving.abandon
    await alarm


class _Alarm(asyncio.Future[None]):
    """Tells of its cancellation while that goes on: no task that was cancelled with it has run yet."""

    rings: Callable[[], None]

    def cancel(self, msg: Any | None = None) -> bool:
        self.rings()
        return super().cancel(msg)


def _awaited_calls(loop: asyncio.AbstractEventLoop) -> list[object]:
    """What gRPC's tasks that wait for the next call of a server refer to.

    gRPC's core writes the next call into an object that only such a task keeps: with the task it would be
    freed, and the core would write into whatever is there then.
    """
    waiting = [task.get_coro() for task in asyncio.all_tasks(loop)]
    found = [coro for coro in waiting if getattr(coro, "__qualname__", "").endswith("._request_call")]
    scopes = gc.get_referents(*found)
    return [*scopes, *gc.get_referents(*scopes)]


def parse_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT ("[::1]:0", ":0" for all interfaces); ConfigurationError says what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(
            f"address {address!r}: HOST:PORT with a port from 0 to 65535 (0: any free one)"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigurationError(f"address {address!r}: write IPv6 addresses in brackets, [::1]:{port}")
    return host or "0.0.0.0", int(port)


async def _mount(
    server: grpc.aio.Server,
    handlers: Sequence[grpc.GenericRpcHandler],
    servicers: Servicers,
    known: list[str],
    health_servicer: health.aio.HealthServicer,
) -> None:
    server.add_generic_rpc_handlers(tuple(handlers))
    known += [handler.service_name() for handler in handlers if isinstance(handler, grpc.ServiceRpcHandler)]
    recorder = _Recorder(server, known)
    for add, servicer in servicers:
        add(servicer, recorder)
    for name in known:
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    known.append(reflection.SERVICE_NAME)
    reflection.enable_server_reflection(sorted(set(known)), server)


class _Recorder:
    """Stands in for the server while generated code adds a servicer, and notes the service's name."""

    def __init__(self, server: grpc.aio.Server, names: list[str]):
        self._server = server
        self._names = names

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service_name: str, method_handlers: dict[str, Any]) -> None:
        self._names.append(service_name)
        cast(Any, self._server).add_registered_method_handlers(service_name, method_handlers)


def _ports(port: int, port_range: tuple[int, int] | None) -> Sequence[int]:
    if port or port_range is None:
        return (port,)
    first, last = port_range
    if not 1 <= first <= last <= 65535:
        raise ConfigurationError(f"port range {first}-{last}: two ports from 1 to 65535, the lower one first")
    return range(first, last + 1)


def _bind(server: grpc.aio.Server, host: str, ports: Sequence[int], security: Security) -> int:
    """Takes the first port that can be bound.

    Looks first, since gRPC writes a line of its own to stderr when it can't bind; a port that was free then
    may be gone a moment later.
    """
    credentials = security.server_credentials()
    for port in ports:
        address = f"{host}:{port}"
        reason = _why_not(host, port)
        if reason is None:
            try:
                if credentials is None:
                    return server.add_insecure_port(address)
                return server.add_secure_port(address, credentials)
            except RuntimeError:
                reason = _why_not(host, port)
        if reason is not None and not isinstance(reason, AddressInUse):
            raise reason
    if not isinstance(ports, range):
        raise AddressInUse(
            f"{host}:{ports[0]} is taken by another process: choose another port, or 0 for a free one"
        )
    raise AddressInUse(f"every port of {host}:{ports[0]}-{ports[-1]} is taken: widen --port-range")


def _why_not(host: str, port: int) -> ConfigurationError | None:
    """Finds out why gRPC can't bind, which it does not tell; None: nothing is in the way now."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)  # no listen(): a client that dials again would be taken in and cut off
    except socket.gaierror as error:
        return ConfigurationError(f"bind address {host!r} is unknown: {error.strerror}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return AddressInUse(f"{host}:{port} is taken")
        return ConfigurationError(f"{host}:{port} can't be bound: {error.strerror}")
    return None


@contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None], exit_seconds: float
) -> Iterator[None]:
    """Turns the first SIGTERM or SIGINT into `stop`; the second ends the process, and so does a hang.

    Plain handlers, since those of asyncio only run once the loop is free.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    received = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received:
            os._exit(128 + number)
        received = True
        last = threading.Timer(exit_seconds, os._exit, [128 + number])
        last.daemon = True
        last.start()
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        if not received:  # while the process ends, a second signal must still work
            for number, handler in before.items():
                signal.signal(number, handler)
