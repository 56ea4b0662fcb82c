"""Connections of this process to a coordinator in this process: members of groups, without more processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psframework as psf
from psframework.membership.coordinator import Coordinator
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve


@dataclass
class Clusters:
    """A coordinator, and connections to it by name."""

    address: str
    coordinator: Coordinator
    stack: AsyncExitStack
    members: dict[str, psf.Cluster] = field(default_factory=dict)

    async def join(self, *names: str, **options: Any) -> list[psf.Cluster]:
        """One more connection for each name."""
        joining = (psf.connect(self.address, name=name, **options) for name in names)
        joined = [await self.stack.enter_async_context(each) for each in joining]
        self.members |= dict(zip(names, joined, strict=True))
        return joined

    async def group(
        self, name: str, members: Sequence[psf.Cluster], **options: Any
    ) -> list[psf.ProcessGroup]:
        """A group of connections, by rank of their order."""
        asked = [
            each.process_group(name, len(members), rank=rank, **options) for rank, each in enumerate(members)
        ]
        return await asyncio.gather(*asked)

    def stored(self) -> list[str]:
        """Of groups, as stored."""
        return [entry.key for entry in self.coordinator.keys.table.list("group/")]


@asynccontextmanager
async def clusters() -> AsyncIterator[Clusters]:
    """A coordinator in this process; connections end with the block."""
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(Coordinator(MemoryStore()))
        stack.callback(coordinator.suspend)
        servicers = [(add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator))]
        options = ServeOptions(announce=False, drain_seconds=0.2)
        server = await stack.enter_async_context(
            serve([], servicers=servicers, bind="127.0.0.1:0", security=Security.plaintext(), options=options)
        )
        inner = await stack.enter_async_context(AsyncExitStack())
        yield Clusters(server.address, coordinator, inner)


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
