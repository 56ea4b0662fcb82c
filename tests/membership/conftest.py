"""A coordinator in the test's own process, with a real server on a real port."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from psframework.membership.client import JoinRequest, Membership
from psframework.membership.coordinator import Coordinator
from psframework.membership.lease import LeaseOptions
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore, Store
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.rpc.options import server_options


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
        server = grpc.aio.server(options=server_options())
        add_CoordinatorServiceServicer_to_server(CoordinatorServicer(coordinator), server)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield Served(coordinator, bound)
        finally:
            coordinator.suspend()
            await server.stop(0)


@pytest.fixture
def serve() -> Callable[..., object]:
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
