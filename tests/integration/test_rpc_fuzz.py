"""Random and mutated frames against a live worker: it answers, closes or ignores, and stays as it was.

Frames of each level: bytes on the call stream, batches of frames and their fields, requests of calls with
values inside, messages about references. The full count carries `soak`.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import remote_functions
from rpc_makers import LARGEST, Makers, Request, hello, incarnations, large_modules

import psframework as psf
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.security.credentials import Security
from psframework.rpc.session import frames
from psframework.rpc.session.frames import FrameBatch
from psframework.rpc.session.handshake import hello_message

SPARE = 8 << 20  # bytes that gRPC and the allocator of a worker may take and keep beside those of a frame
BATCH = 50
SECONDS = 20.0
CALLS = "/psframework.proto.v1.CallService/"


class Target:
    """A worker's process and a channel to it as any member's.

    Args:
        local: its cluster.
        channel: to the worker.
    """

    def __init__(self, local: psf.LocalCluster, channel: grpc.aio.Channel) -> None:
        self.process = local.processes["worker-0"]
        self.channel = channel
        self.ended: Counter[str] = Counter()  # how streams and calls ended

    def resident(self) -> int:
        """Resident bytes of the worker."""
        assert self.process.alive, self.process.last_words
        return psutil.Process(self.process.pid).memory_info().rss

    def peak(self) -> int:
        """The most that it ever had since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    async def stream(self, messages: Sequence[bytes], method: str = "Connect") -> None:
        """Sends messages on a stream of its own; waits until the worker has taken or refused them."""
        call = self.channel.stream_stream(CALLS + method)(timeout=SECONDS)
        try:
            for message in messages:
                await call.write(message)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
            code = await call.code()
        except grpc.aio.AioRpcError as error:
            code = error.code()
        except asyncio.InvalidStateError:  # it was refused while a message was being written
            code = await call.code()
        self.note(code)

    async def unary(self, request: Request) -> None:
        """One call as a stock stub makes it."""
        try:
            await self.channel.unary_unary(request.method)(request.header, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            self.note(error.code())
        else:
            self.note(grpc.StatusCode.OK)

    def note(self, code: grpc.StatusCode) -> None:
        """A hang would end here by its deadline."""
        assert code is not grpc.StatusCode.DEADLINE_EXCEEDED
        self.ended[code.name] += 1


class Session:
    """A session of a member that nobody knows with a worker's incarnation, frame by frame."""

    def __init__(self, call: Any, worker: int) -> None:
        self.worker = worker
        self._call = call
        self._sent = 0
        self._received = 0

    async def ask(self, requests: Sequence[Request]) -> Counter[str]:
        """Sends requests in one message; each gets one reply: how many were errors, of which type."""
        encoded = [frames.encode_frame(each.frame(self._sent + at)) for at, each in enumerate(requests, 1)]
        await self._call.write(frames.encode_batch(self._sent + 1, (self._received, 0, 0), encoded))
        wanted = set(range(self._sent + 1, self._sent + len(requests) + 1))
        self._sent += len(requests)
        outcomes: Counter[str] = Counter()
        while wanted:
            batch = FrameBatch.FromString(await self._call.read())
            for frame in batch.frames:
                self._received += 1
                if frame.kind == frames.REPLY:
                    wanted.remove(frame.call)
                    outcomes[frame.error.type if frame.HasField("error") else "answered"] += 1
        return outcomes


@asynccontextmanager
async def session(target: Target, incarnation: int | None = None) -> AsyncIterator[Session]:
    """One that was accepted."""
    call = target.channel.stream_stream(CALLS + "Connect")(timeout=120)
    try:
        await call.write(hello_message(hello(incarnation)))
        answer = FrameBatch.FromString(await call.read())
        assert answer.HasField("welcome")
        yield Session(call, answer.welcome.sender.incarnation)
    finally:
        call.cancel()


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[tuple[psf.LocalCluster, psf.Cluster]]:
    async with (
        psf.local_cluster(workers=1, imports=["remote_functions"]) as local,
        psf.connect(local.address) as cluster,
    ):
        yield local, cluster


@pytest.fixture
async def target(cluster: tuple[psf.LocalCluster, psf.Cluster]) -> AsyncIterator[Target]:
    """The worker; afterwards it must work as before, for old and new members."""
    local, member = cluster
    pid = local.processes["worker-0"].pid
    security = Security.from_settings(token=local.token)
    async with security.channel(local.processes["worker-0"].address) as channel:
        yield Target(local, channel)
    assert local.processes["worker-0"].pid == pid and local.processes["worker-0"].alive
    async with psf.connect(local.address) as other:
        for each in (member, other):
            total = await each.rpc_async("worker-0", remote_functions.add, (np.arange(5), 1), timeout=SECONDS)
            np.testing.assert_array_equal(total, np.arange(1, 6))


# The levels: each sends about `count` frames


async def bytes_on_the_stream(target: Target, makers: Makers, count: int) -> None:
    """First messages, and noise after a right one, of call streams and stripes."""
    for _ in range(count // 2):
        if makers.rng.random() < 0.2:
            chunk = Chunk(session=os.urandom(16), connection=1, data=makers.mutator.noise())
            await target.stream([makers.mutator.message(chunk).SerializeToString()], "Stripe")
        else:
            await target.stream([makers.opening()])
        await target.stream([hello_message(hello()), makers.mutator.noise()])


async def batches_of_frames(target: Target, makers: Makers, count: int) -> None:
    """Frames with wrong fields; the first that breaks the protocol ends its stream."""
    sent = 0
    while sent < count:
        data, number = makers.batch()
        await target.stream([hello_message(hello()), data])
        sent += number


async def requests(target: Target, makers: Makers, count: int) -> None:
    """Requests with wrong values inside: each is answered; on the call stream, and as unary calls."""
    outcomes: Counter[str] = Counter()
    async with session(target) as open_session, asyncio.timeout(SECONDS + count / 100):
        for _ in range(count // BATCH):
            outcomes += await open_session.ask([makers.request() for _ in range(BATCH - 2)])
            for _ in range(2):
                await target.unary(makers.request())
    assert outcomes["answered"] and outcomes.total() > outcomes["answered"], outcomes


async def messages_about_references(target: Target, makers: Makers, count: int) -> None:
    """Creations, uses and exchanges with wrong names, forks and holds; each is answered."""
    mine, outcomes = next(incarnations), Counter[str]()
    async with session(target, mine) as open_session, asyncio.timeout(SECONDS + count / 100):
        for _ in range(count // BATCH):
            outcomes += await open_session.ask(
                [makers.reference(mine, open_session.worker) for _ in range(BATCH)]
            )
    assert outcomes["answered"] and outcomes.total() > outcomes["answered"], outcomes


async def large_frames(target: Target, makers: Makers, count: int) -> None:
    """Requests with large payloads, one at a time."""
    outcomes: Counter[str] = Counter()
    async with session(target) as open_session, asyncio.timeout(SECONDS + count):
        for _ in range(count):
            outcomes += await open_session.ask([makers.large()])
    assert outcomes.total() > outcomes["WireError"] > 0 and not outcomes["answered"], outcomes


async def modules_beyond_their_states(target: Target, makers: Makers, count: int) -> None:
    """Modules that ask for more than their states, one at a time: a worker takes twice the frame at most."""
    outcomes, modules = Counter[str](), large_modules()
    async with session(target) as open_session, asyncio.timeout(SECONDS + count):
        for _ in range(count):
            request = makers.beyond(*makers.rng.choice(modules))
            nbytes = len(request.header) + sum(map(len, request.parts))
            target.forget_peak()
            before = target.resident()
            outcomes += await open_session.ask([request])
            grown = target.peak() - before
            assert grown <= 2 * nbytes + SPARE, f"{grown} bytes more for a frame of {nbytes}"
    assert outcomes["WireError"] > 0 and outcomes["TypeError"] > 0, outcomes  # refused; read, and then added


LEVELS = [  # and the share of the frames that each sends
    (bytes_on_the_stream, 0.05),
    (batches_of_frames, 0.25),
    (requests, 0.4),
    (messages_about_references, 0.291),
    (large_frames, 0.003),
    (modules_beyond_their_states, 0.006),
]
Level = Callable[[Target, Makers, int], Any]


async def frames_of(target: Target, level: Level, seed: int, count: int) -> None:
    """Warms up, sends, and asserts that the worker never held more than twice the largest frame beside."""
    await level(target, Makers(seed + 1), max(BATCH, count // 20))
    target.forget_peak()
    before = target.resident()
    await level(target, Makers(seed), count)
    grown = target.peak() - before
    assert grown <= 2 * LARGEST, f"{level.__name__}: {grown >> 20} MiB after {count} frames; seed {seed}"


@pytest.mark.parametrize(("level", "share"), LEVELS, ids=lambda value: getattr(value, "__name__", ""))
async def test_frames(target: Target, level: Level, share: float) -> None:
    await frames_of(target, level, seed=4, count=int(10_000 * share))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("level", "share"), LEVELS, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_hundred_thousand_frames(target: Target, level: Level, share: float) -> None:
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    await frames_of(target, level, seed, count=int(100_000 * share))
