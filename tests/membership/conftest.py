"""A coordinator in the test's own process, with a real server on a real port."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from psframework.membership.client import JoinRequest, Membership
from psframework.membership.coordinator import Coordinator
from psframework.membership.lease import LeaseOptions
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore, Store
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve


@dataclass
class Served:
    """A running coordinator and where it listens."""

    coordinator: Coordinator
    port: int

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.port}"]

    def join(self, role: str = "worker", **options: object) -> Membership:
        return Membership.join(self.addresses, JoinRequest(role, **options), timeout=10)


@asynccontextmanager
async def serve_coordinator(
    store: Store | None = None, *, port: int = 0, options: LeaseOptions | None = None
) -> AsyncIterator[Served]:
    async with Coordinator(store or MemoryStore(), options=options) as coordinator:
        mounted = (add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator))
        async with serve(
            servicers=[mounted],
            bind=f"127.0.0.1:{port}",
            security=Security.plaintext(),
            options=ServeOptions(announce=False, idle=lambda: True),
        ) as server:
            draining = asyncio.create_task(suspend_when(server.draining, coordinator))
            yield Served(coordinator, server.port)
            draining.cancel()


async def suspend_when(draining: asyncio.Event, coordinator: Coordinator) -> None:
    """What a service's `on_drain` does."""
    await draining.wait()
    coordinator.suspend()


@pytest.fixture
def start() -> Callable[..., AbstractAsyncContextManager[Served]]:
    return serve_coordinator


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serve_coordinator() as running:
        yield running


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address that refuses connections: bound, but not listened on, so nobody else gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


class Process:
    """A child that tells events as lines of JSON, and obeys lines on its stdin."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, object]] = []

    async def expect(self, event: str, timeout: float = 20.0, **facts: object) -> dict[str, object]:
        """Waits for an event, passing over others; those stay in `events`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout):
            while True:
                line = await self.process.stdout.readline()
                assert line, f"ended before {event!r}; events: {self.events}"
                found = json.loads(line)
                if found["event"] == event and facts.items() <= found.items():
                    return found
                assert found["event"] != "error", found
                self.events.append(found)

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def end(self) -> int:
        """Closes its stdin and waits for its exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(20):
            return await self.process.wait()


class Processes:
    """Starts children and ends them all."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    async def start(self, script: str, *arguments: object) -> Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).parent / script),
            *map(str, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.started.append(Process(child))
        return self.started[-1]

    async def member(self, addresses: list[str], role: str = "worker", **options: object) -> Process:
        wanted = json.dumps({"role": role, **options})
        return await self.start("member_process.py", ",".join(addresses), wanted)

    async def coordinator(self, path: Path, port: int = 0) -> Process:
        return await self.start("coordinator_process.py", path, port)


@pytest.fixture
async def processes() -> AsyncIterator[Processes]:
    running = Processes()
    yield running
    for child in running.started:
        if child.process.returncode is None:
            child.process.kill()
        await child.process.wait()
        child.process._transport.close()  # type: ignore[attr-defined]  # else its pipes wait for the collector
