"""A coordinator in a process of its own; ends when stdin closes."""

import asyncio
import sys

from psframework.membership.coordinator import Coordinator
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import SqliteStore
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve


async def main(path: str, port: str) -> None:
    async with Coordinator(SqliteStore(path)) as coordinator:
        mounted = (add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator))
        options = ServeOptions(announce=False, idle=lambda: True)
        async with serve(
            servicers=[mounted], bind=f"127.0.0.1:{port}", security=Security.plaintext(), options=options
        ) as server:
            draining = asyncio.create_task(suspend_when(server.draining, coordinator))
            print(f'{{"event": "serving", "port": {server.port}, "term": {coordinator.term}}}', flush=True)
            ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
            stopped = asyncio.ensure_future(server.wait_stopped())
            await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
            server.request_stop()
            await stopped
            draining.cancel()


async def suspend_when(draining: asyncio.Event, coordinator: Coordinator) -> None:
    await draining.wait()
    coordinator.suspend()


asyncio.run(main(*sys.argv[1:]))
