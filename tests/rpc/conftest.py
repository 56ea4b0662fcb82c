"""Two real agents on loopback: a server with a small service, and clients of it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import called
import grpc
import pytest
from crew import Crew
from google.protobuf.wrappers_pb2 import BytesValue, StringValue, UInt64Value

from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.remote_client import Remote
from psframework.rpc.limits import AgentOptions
from psframework.rpc.options import server_options
from psframework.rpc.security.credentials import Security
from psframework.rpc.service import Method, Service
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.calls import OnPart
from psframework.rpc.session.peer import Peer
from psframework.testing.workers import Worker
from psframework.wire.lanes import Lane
from psframework.wire.memory import Buffer

SECONDS = 10.0
INCARNATIONS = itertools.count(1)


class Desk:
    """A service whose handlers do what tests need; counts what ran."""

    name = "test.Desk"

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.kept: list[memoryview] = []
        self.cancelled: list[str] = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.seen_parts: list[tuple[int, int]] = []

    def methods(self) -> Sequence[Method]:
        text = (StringValue, StringValue)
        return [
            Method("Echo", *text, self.echo),
            Method("EchoLater", *text, self.echo_later),
            Method("Hold", *text, self.hold),
            Method("Raise", *text, self.fail),
            Method("CallBack", *text, self.call_back),
            Method("AskBack", Chunk, Chunk, self.ask_back),
            Method("OnlyBoss", *text, self.echo, roles=frozenset({"boss"})),
            Method("Sum", Chunk, Chunk, self.total),
            Method("Mirror", Chunk, Chunk, self.mirror),
            Method("MirrorNow", Chunk, Chunk, self.mirror_now),
            Method("Stream", Chunk, Chunk, self.stream),
            Method("BreakOff", Chunk, Chunk, self.break_off),
            Method("Keep", Chunk, Chunk, self.keep),
            Method("Segment", UInt64Value, BytesValue, self.segment),
        ]

    def echo(self, request: StringValue, call: Call) -> StringValue:
        self.ran.append(request.value)
        return request

    async def echo_later(self, request: StringValue, call: Call) -> StringValue:
        self.ran.append(request.value)
        await asyncio.sleep(0)
        return request

    async def hold(self, request: StringValue, call: Call) -> StringValue:
        """Answers once the test opens the gate."""
        self.ran.append(request.value)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.value)
            raise
        return request

    async def fail(self, request: StringValue, call: Call) -> StringValue:
        raise ValueError(f"no such thing as {request.value}")

    async def call_back(self, request: StringValue, call: Call) -> StringValue:
        assert call.caller is not None
        if not request.value:
            return StringValue(value="end")
        less = StringValue(value=request.value[1:])
        reply, _ = await call.caller.call("/test.Desk/CallBack", less, StringValue, deadline=call.deadline)
        return StringValue(value=request.value[0] + reply.value)

    async def ask_back(self, request: Chunk, call: Call) -> Chunk:
        """Answers once the caller has mirrored what it sent."""
        parts = await call.payload.whole()
        assert call.caller is not None
        mirror, until = "/test.Desk/Mirror", call.deadline
        _, got = await call.caller.call(mirror, Chunk(), Chunk, parts=parts, deadline=until)
        assert [bytes(part) for part in got] == [bytes(part) for part in parts]
        return request

    async def total(self, request: Chunk, call: Call) -> Chunk:
        """The sum of all bytes, part by part while they arrive."""
        total = 0
        async for index, part in call.payload.parts():
            self.seen_parts.append((index, len(part)))
            total += sum(part[:: max(1, len(part) // 8)])
            self.started.set()
        return Chunk(offset=total, part=len(call.payload.sizes))

    async def mirror(self, request: Chunk, call: Call) -> Chunk:
        call.reply_parts([bytes(part) for part in await call.payload.whole()])
        return Chunk(call=request.call)

    def mirror_now(self, request: Chunk, call: Call) -> Chunk:
        parts = call.payload.whole_now()
        assert parts is not None
        call.reply_parts([bytes(part) for part in parts])
        return Chunk(call=request.call)

    async def stream(self, request: Chunk, call: Call) -> Chunk:
        """Sends each part back as soon as it is here, after the reply's header."""

        async def parts() -> AsyncIterator[tuple[int, bytes]]:
            async for index, part in call.payload.parts():
                yield index, bytes(part)

        call.reply_parts(parts(), call.payload.sizes)
        return Chunk(call=request.call)

    async def break_off(self, request: Chunk, call: Call) -> Chunk:
        async def parts() -> AsyncIterator[tuple[int, bytes]]:
            yield 0, bytes(1 << 20)
            raise KeyError("the second part")

        call.reply_parts(parts(), [1 << 20, 1 << 20])
        return Chunk()

    def keep(self, request: Chunk, call: Call) -> Chunk:
        self.kept += call.payload.whole_now() or []
        return Chunk()

    def segment(self, request: UInt64Value, call: Call) -> BytesValue:
        return BytesValue(value=call.segments(request.value).read(0, 4))


@dataclass
class Office:
    """A running server, and ways to reach it."""

    desk: Desk
    agent: Agent
    port: int
    stack: AsyncExitStack
    directory: Path
    clients: list[Agent] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def options(self, lanes: str = "inline,striped,shm", **more: object) -> AgentOptions:
        chosen = frozenset(Lane(name) for name in lanes.split(","))
        return AgentOptions(lanes=chosen, segment_directory=str(self.directory), **more)  # type: ignore[arg-type]

    async def client(
        self, name: str = "client", *, services: Sequence[Service] = (), options: AgentOptions | None = None
    ) -> Agent:
        info = PeerInfo(name, "worker", "job", next(INCARNATIONS))
        agent = Agent(
            info, security=Security.plaintext(), services=services, options=options or self.options()
        )
        self.clients.append(await self.stack.enter_async_context(agent))
        return agent

    async def peer(self, address: str = "", **kwargs: object) -> Peer:
        agent = await self.client(**kwargs)  # type: ignore[arg-type]
        return await self.dial(agent, address)

    async def echo(self, peer: Peer, value: str, method: str = "Echo", seconds: float = SECONDS) -> str:
        reply, _ = await peer.call(
            f"/test.Desk/{method}", StringValue(value=value), StringValue, deadline=Deadline.after(seconds)
        )
        return reply.value

    async def send(
        self, peer: Peer, method: str, parts: Sequence[Buffer], on_part: OnPart | None = None
    ) -> tuple[Chunk, list[memoryview]]:
        return await peer.call(
            f"/test.Desk/{method}",
            Chunk(call=7),
            Chunk,
            parts=parts,
            deadline=Deadline.after(SECONDS),
            on_part=on_part,
        )

    async def until(self, condition: Callable[[], object], seconds: float = 5.0) -> None:
        """Waits for a condition, looking again after every turn of the loop."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - conditions of every kind
                await asyncio.sleep(0.001)

    async def dial(self, agent: Agent, address: str = "") -> Peer:
        return await agent.connect(
            [address or self.address], name="office", role="server", deadline=Deadline.after(SECONDS)
        )


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        yield await open_office(stack, tmp_path)


@pytest.fixture
async def small_office(tmp_path: Path) -> AsyncIterator[Office]:
    """One that lets a peer have only 256 KiB on the way."""
    async with AsyncExitStack() as stack:
        yield await open_office(stack, tmp_path, window_bytes=256 * 1024)


async def open_office(stack: AsyncExitStack, directory: Path, **options: object) -> Office:
    desk = Desk()
    info = PeerInfo("office", "server", "", next(INCARNATIONS))
    limits = AgentOptions(segment_directory=str(directory), **options)  # type: ignore[arg-type]
    agent = Agent(info, security=Security.plaintext(), services=[desk], options=limits)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers(tuple(agent.handlers()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stack.push_async_callback(server.stop, 0)
    await stack.enter_async_context(agent)
    return Office(desk, agent, port, stack, directory)


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    called.clear()
    async with AsyncExitStack() as stack:
        yield Crew(stack)
    called.clear()


@pytest.fixture
async def pair(crew: Crew) -> tuple[Remote, Worker]:
    ann = await crew.hire("ann")
    return ann.remote, await crew.hire("bob")
