"""Remote calls against torch.distributed.rpc: small calls one by one, 64 in flight, 64 MiB one way.

First of bare methods over the call stream, then of registered functions, as users call them.

    python benchmarks/rpc.py --torch-python /path/to/python [--reps 5]

Sides are interleaved in one run, pinned alike (client on one core, server on another; with PSF_BENCH_PIN=0
neither is), with the same allocator.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import numpy as np
from google.protobuf.wrappers_pb2 import FloatValue

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._host import pin, set_allocator
from benchmarks._peer import measure, ours, parse, theirs
from benchmarks._side import Figures, percentile, serve_side
from benchmarks._table import Row, report
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.execute import Executor
from psframework.rpc.functions.remote_client import Remote
from psframework.rpc.functions.remote_service import RemoteService
from psframework.rpc.limits import AgentOptions
from psframework.rpc.options import server_options
from psframework.rpc.process import SWITCH_SECONDS
from psframework.rpc.registry import remote
from psframework.rpc.security.credentials import Security
from psframework.rpc.service import Method, Service
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.peer import Peer
from psframework.rref.client import RRefs
from psframework.testing.workers import Phonebook
from psframework.wire.lanes import parse as parse_lanes

CALLS, INFLIGHT_CALLS, WINDOW, MIB = 1000, 8000, 64, 1 << 20
SCALAR = np.ones((), np.float32)
ROWS = (
    Row("latency", "echo, one by one, p50", "us", 1e6, 1.0, lower_is_better=True),
    Row("inflight", "echo, 64 in flight", "calls/s", 1.0, 5.0),
    Row("push", "64 MiB one way, shared memory", "GB/s", 1e-9, 2.0),
    Row("latency_tcp", "echo, one by one, p50, torch on TCP", "us", 1e6, 0.4, lower_is_better=True),
    Row("push_tcp", "64 MiB one way, striped / TCP", "GB/s", 1e-9, 1.5),
    Row("call", "function, one by one, p50", "us", 1e6, 1.0, lower_is_better=True),
    Row("call_tcp", "function, one by one, p50, torch on TCP", "us", 1e6, 0.4, lower_is_better=True),
    Row("call_sync", "sync function, one by one, p50", "us", 1e6, 1.0, lower_is_better=True),
    Row("call_inflight", "function, 64 in flight", "calls/s", 1.0, 5.0),
    Row("call_inflight_sync", "sync function, 64 in flight", "calls/s", 1.0),
    Row("rref", "RRef, create and to_here, p50", "us", 1e6, 1.0, lower_is_better=True),
    Row("call_push", "64 MiB argument, shared memory", "GB/s", 1e-9, 2.0),
    Row("call_push_tcp", "64 MiB argument, striped / TCP", "GB/s", 1e-9, 1.5),
)
# What torch's side runs for each of ours that it has no case of its own for.
SAME = {
    "call": "latency",
    "call_sync": "latency",
    "call_tcp": "latency_tcp",
    "call_inflight": "inflight",
    "call_inflight_sync": "inflight",
    "call_push": "push",
    "call_push_tcp": "push_tcp",
}


@remote(name="bench.echo")
async def echo(x: object) -> object:
    """What torch's side does, as a function."""
    return x


@remote(name="bench.echo_sync")
def echo_sync(x: object) -> object:
    """The same in the thread pool."""
    return x


@remote(name="bench.sink")
async def sink(x: object) -> None:
    """Takes an array."""


class EchoService:
    """What torch's side does, here."""

    name = "bench.EchoService"

    def methods(self) -> Sequence[Method]:
        return [
            Method("Echo", FloatValue, FloatValue, self.echo),
            Method("Sink", Chunk, Chunk, self.sink),
        ]

    def echo(self, request: FloatValue, call: Call) -> FloatValue:
        return request

    async def sink(self, request: Chunk, call: Call) -> Chunk:
        async for _ in call.payload.parts():
            pass
        return Chunk()


def make_agent(name: str, folder: str, lanes: str, *services: Service) -> Agent:
    options = AgentOptions(lanes=parse_lanes(lanes), segment_directory=folder)
    info = PeerInfo(name, "bench", "", 1 if name == "client" else 2)
    return Agent(info, security=Security.plaintext(), services=[EchoService(), *services], options=options)


def serve(folder: str, lanes: str, pipe: Connection) -> None:
    """The server's process."""

    async def main() -> None:
        async with (
            Executor() as executor,
            RemoteService(executor) as functions,
            make_agent("server", folder, lanes, functions) as agent,
            RRefs(agent, Remote(agent, Phonebook()), Phonebook(), functions),
        ):
            server = grpc.aio.server(options=server_options())
            server.add_generic_rpc_handlers(tuple(agent.handlers()))
            agent.listen("127.0.0.1")
            pipe.send(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
            await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)
        await server.stop(0)

    set_allocator()
    sys.setswitchinterval(SWITCH_SECONDS)
    pin(1)
    asyncio.run(main())


class Client:
    """The client's process: one loop, driven one repetition at a time."""

    def __init__(self, runner: asyncio.Runner, agent: Agent, peer: Peer) -> None:
        self._runner = runner
        self._peer = peer
        self._remote = Remote(agent, Phonebook())
        self._rrefs = RRefs(agent, self._remote, Phonebook(), RemoteService(Executor()))
        self._array = np.ones(16 * MIB, np.float32)

    def case(self, body: Callable[[], Awaitable[float]]) -> Callable[[], float]:
        async def run() -> float:
            return await body()

        return lambda: self._runner.run(run())

    async def echo(self) -> None:
        await self._peer.call(
            "/bench.EchoService/Echo", FloatValue(value=1), FloatValue, deadline=Deadline.after(60)
        )

    async def latency(self) -> float:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            await self.echo()
            times.append(time.perf_counter() - start)
        return percentile(times, 0.5)

    async def inflight(self) -> float:
        start = time.perf_counter()
        for _ in range(INFLIGHT_CALLS // WINDOW):  # in rounds of 64, as torch's side
            await asyncio.gather(*(self.echo() for _ in range(WINDOW)))
        return INFLIGHT_CALLS / (time.perf_counter() - start)

    async def push(self) -> float:
        part, n = memoryview(self._array).cast("B"), 6
        start = time.perf_counter()
        for _ in range(n):
            await self._peer.call(
                "/bench.EchoService/Sink", Chunk(), Chunk, parts=[part], deadline=Deadline.after(60)
            )
        return n * 64 * MIB / (time.perf_counter() - start)

    def call(self, function: Callable[[object], object]) -> Callable[[], Awaitable[float]]:
        async def body() -> float:
            times = []
            for _ in range(CALLS):
                start = time.perf_counter()
                await self._remote.rpc_async("server", function, (SCALAR,))
                times.append(time.perf_counter() - start)
            return percentile(times, 0.5)

        return body

    def call_inflight(self, function: Callable[[object], object]) -> Callable[[], Awaitable[float]]:
        async def body() -> float:
            rpc, start = self._remote.rpc_async, time.perf_counter()
            for _ in range(INFLIGHT_CALLS // WINDOW):
                for future in [rpc("server", function, (SCALAR,)) for _ in range(WINDOW)]:
                    await future
            return INFLIGHT_CALLS / (time.perf_counter() - start)

        return body

    async def rref(self) -> float:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            await self._rrefs.remote("server", echo, (SCALAR,)).to_here()
            times.append(time.perf_counter() - start)
        return percentile(times, 0.5)

    async def call_push(self) -> float:
        n = 6
        start = time.perf_counter()
        for _ in range(n):
            await self._remote.rpc_async("server", sink, (self._array,))
        return n * 64 * MIB / (time.perf_counter() - start)


def run_side(lanes: str) -> None:
    """Our side: a server process, and this one as the client."""
    set_allocator()
    sys.setswitchinterval(SWITCH_SECONDS)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        mine, theirs = get_context("spawn").Pipe()
        server = get_context("spawn").Process(target=serve, args=(folder, lanes, theirs), daemon=True)
        server.start()
        pin(0)
        agent = make_agent("client", folder, lanes)
        port = mine.recv()

        async def start() -> Client:
            await agent.__aenter__()
            peer = await agent.connect(
                [f"127.0.0.1:{port}"], name="server", role="bench", deadline=Deadline.after(30)
            )
            await asyncio.sleep(0.2)  # what a session opens beside gRPC is there by then
            return Client(runner, agent, peer)

        client = runner.run(start())
        cases = {"latency": client.latency, "inflight": client.inflight, "push": client.push}
        cases |= {"push_tcp": client.push, "latency_tcp": client.latency}
        cases |= {
            "call": client.call(echo),
            "call_tcp": client.call(echo),
            "call_sync": client.call(echo_sync),
        }
        cases |= {"call_inflight": client.call_inflight(echo), "call_push": client.call_push}
        cases |= {"call_inflight_sync": client.call_inflight(echo_sync), "call_push_tcp": client.call_push}
        cases["rref"] = client.rref
        serve_side({name: client.case(body) for name, body in cases.items()})
        runner.run(agent.close())
        mine.send("stop")
        server.join()


def main() -> int:
    args = parse(__doc__, flags={"--cases": {"nargs": "*", "default": [], "help": "only these"}})
    if args.side:
        run_side(args.side)
        return 0
    figures: Figures = {}
    rows = [row for row in ROWS if not args.cases or row.case in args.cases]
    for lanes, transport in (("inline,striped,shm", "default"), ("inline,striped", "uv")):
        part = [row for row in rows if row.case.endswith("_tcp") == (transport == "uv")]
        if part:
            sides = [ours(__file__, lanes), *theirs(args, "torch", "_torch_rpc.py", transport, same=SAME)]
            figures |= measure(sides, part, args.reps)
    return 0 if report(figures, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
