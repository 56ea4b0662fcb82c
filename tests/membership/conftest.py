"""A coordinator in the test's own process, with a real server on a real port."""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from psframework.membership.client import JoinRequest, Membership
from psframework.membership.coordinator import Coordinator
from psframework.membership.lease import LeaseOptions
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore, Store
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.rpc.security import Security
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
            coordinator.suspend_on(server.draining)
            yield Served(coordinator, server.port)


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
