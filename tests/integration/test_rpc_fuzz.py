"""Random and mutated frames against a live worker: it answers, closes or ignores, and stays as it was.

Frames of each level: bytes on the call stream, batches of frames and their fields, requests of calls with
values inside, messages about references. The full count carries `soak`.
"""

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import psutil
import pytest
import remote_functions
from fuzz import Mutator

import psframework as psf
from psframework.proto.v1 import remote_pb2 as pb
from psframework.proto.v1 import rref_pb2 as refs
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.security.credentials import Security
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame, FrameBatch, Hello, Identity, LinkState
from psframework.rpc.session.handshake import hello_message
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey

MIB = 1 << 20
LARGEST = 8 * MIB  # bytes of a frame here
BATCH = 50
SECONDS = 20.0
CALLS = "/psframework.proto.v1.CallService/"
ADD = "remote_functions.add"
RREFS = "/psframework.proto.v1.RRefService/"
REMOTE = "/psframework.proto.v1.RemoteService/"
incarnations = itertools.count(1 << 40)


class Request(NamedTuple):
    """Of a method: what its header is, as bytes, and its parts."""

    method: str
    header: bytes
    parts: Sequence[bytes] = ()
    timeout: float = 5.0

    def frame(self, call: int) -> Frame:
        """As a frame of the inline lane."""
        made = Frame(kind=frames.REQUEST, call=call, method=self.method, header=self.header)
        made.timeout_us = int(self.timeout * 1e6)
        if self.parts:
            made.lane, made.sizes[:], made.parts[:] = frames.INLINE, map(len, self.parts), self.parts
        return made


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
    """A session of a member that nobody knows, frame by frame."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sent = 0
        self._received = 0

    async def ask(self, requests: Sequence[Request]) -> Counter[str]:
        """Sends requests in one message; each gets one reply: how many were errors, of which type."""
        encoded = [frames.encode_frame(each.frame(self._sent + at)) for at, each in enumerate(requests, 1)]
        await self._call.write(frames.encode_batch(self._sent + 1, self._received, 0, encoded))
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


def hello(incarnation: int | None = None) -> Hello:
    """Of a member that nobody knows."""
    sender = Identity(
        name="fuzz", role="trainer", job="default", incarnation=incarnation or next(incarnations)
    )
    state = LinkState(window=128 * MIB, lanes=[frames.INLINE, frames.STRIPED])
    return Hello(protocol=frames.PROTOCOL, session=os.urandom(16), connection=1, sender=sender, state=state)


@asynccontextmanager
async def session(target: Target, incarnation: int | None = None) -> AsyncIterator[Session]:
    """One that was accepted."""
    call = target.channel.stream_stream(CALLS + "Connect")(timeout=120)
    try:
        await call.write(hello_message(hello(incarnation)))
        assert FrameBatch.FromString(await call.read()).HasField("welcome")
        yield Session(call)
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


# What is sent


def values() -> list[Any]:
    """Arguments of many kinds."""
    return [
        (1, 2),
        (2.5, 1 << 100),
        ("text", "é" * 40),
        (b"bytes", bytearray(b"more")),
        ([1, [2, [3, [None, True]]]], {"a": 1, "b": (2, {3})}),
        (np.arange(12.0).reshape(3, 4), np.float16(2)),
        (psf.tensor([1.0, 2.0], requires_grad=True), np.zeros((0, 3), np.complex64)),
        (slice(1, 2), range(5)),
        (1 + 2j, np.random.default_rng(1)),
    ]


def invoke(args: tuple[Any, ...]) -> pb.InvokeRequest:
    """A call, as it should be."""
    value = arguments.encode_call(args, {}, Journey())
    return pb.InvokeRequest(function=ADD, arguments=value, metadata={"a": "b"})


def outlines(mutator: Mutator) -> pb.Value:
    """A value whose nodes are random, beside enough of what nodes consist of."""
    rng = mutator.rng
    return pb.Value(
        outline=bytes(rng.choice((*range(64), 128, 255)) for _ in range(rng.randrange(60))),
        integers=[rng.getrandbits(20) for _ in range(5)],
        reals=[rng.random() for _ in range(5)],
        texts=rng.choices(["int32", "float", "cuda:0", "2026-11-30", "remote_functions.add", "UTC"], k=5),
        blobs=[rng.randbytes(8) for _ in range(5)],
    )


class Makers:
    """What to send, at random."""

    def __init__(self, seed: int) -> None:
        self.mutator = Mutator(seed)
        self.rng = self.mutator.rng
        self._calls = [invoke(args) for args in values()]

    def request(self) -> Request:
        """A request of RemoteService."""
        rng, call = self.rng, self.rng.choice(self._calls)
        call = self.mutator.message(call)
        if rng.random() < 0.3:
            call.arguments.CopyFrom(outlines(self.mutator))
        method, message = rng.choice(
            [
                *[("Invoke", call)] * 6,
                ("OpenStream", pb.OpenStreamRequest(call=call, max_items=rng.getrandbits(8))),
                ("NextItems", pb.NextItemsRequest(stream=rng.getrandbits(6))),
                ("CloseStream", pb.CloseStreamRequest(stream=rng.getrandbits(6))),
                ("Describe" if rng.random() < 0.05 else "Nothing", pb.DescribeRequest()),
            ]
        )
        data = message.SerializeToString()
        return Request(REMOTE + method, self.mutator.data(data) if rng.random() < 0.3 else data)

    def reference(self, mine: int) -> Request:
        """A request of RRefService, from the process whose incarnation is `mine`."""
        rng, one = self.rng, refs.RRefId(worker=mine, counter=self.rng.getrandbits(4))
        fork = refs.ForkId(holder=mine, counter=rng.getrandbits(4))
        hold = refs.HoldId(sender=mine, counter=rng.getrandbits(4))
        told = [
            refs.ReferenceMessage(
                register=refs.ForkRegistration(fork=fork, rref=one, parent=fork, hold=hold)
            ),
            refs.ReferenceMessage(broken=refs.ForkBreakage(fork=fork, rref=one)),
            refs.ReferenceMessage(refused=refs.ForkRefusal(fork=fork, reason=1)),
            *(refs.ReferenceMessage(**{kind: fork}) for kind in ("delete", "registered", "deleted")),
            *(refs.ReferenceMessage(**{kind: hold}) for kind in ("unhold", "unheld", "ask", "not_held")),
        ]
        call = rng.choice(self._calls)
        method, message = rng.choice(
            [
                ("Create", refs.CreateRequest(rref=one, fork=fork, call=call)),
                ("Create", refs.CreateRequest(rref=one, fork=fork, call=call, on=one, on_fork=fork)),
                ("Fetch", refs.FetchRequest(rref=one, fork=fork)),
                ("CallMethod", refs.CallMethodRequest(rref=one, fork=fork, call=call)),
                *[("Exchange", refs.ExchangeRequest(messages=rng.choices(told, k=3)))] * 4,
            ]
        )
        data = self.mutator.message(message, changes=(0, 1, 1, 2)).SerializeToString()
        data = self.mutator.data(data) if rng.random() < 0.2 else data
        return Request(RREFS + method, data, timeout=0.05)  # a value that is not there may still come

    def large(self) -> Request:
        """A request with large bytes and a large array, right or a little wrong; the function fails."""
        part, journey = int(LARGEST * self.rng.uniform(0.3, 0.5)), Journey()
        args = (self.rng.randbytes(part), np.zeros(part, np.uint8))
        value = arguments.encode_call(args, {}, journey)
        call = self.mutator.message(pb.InvokeRequest(function=ADD, arguments=value), changes=(0, 1, 2))
        parts = tuple(bytes(part) for part in journey.parts[: self.rng.choice((1, 2, 2, 2))])
        return Request(REMOTE + "Invoke", call.SerializeToString(), parts)

    def frame(self, call: int) -> Frame:
        """A frame with a field or more that is wrong."""
        right = self.request().frame(call)
        if self.rng.random() < 0.5:
            right.lane = self.rng.choice((frames.INLINE, frames.STRIPED, frames.SHM))
            right.sizes.extend(self.rng.choices((0, 1, 100, 10 << 30), k=2))
            right.parts.extend([b"", b"1"])
            right.offsets.extend([0, 1 << 40])
        return self.mutator.message(right)

    def batch(self) -> tuple[bytes, int]:
        """A batch with such frames, and how many."""
        count = self.rng.randrange(1, 12)
        batch = FrameBatch(first=1, frames=[self.frame(call) for call in range(1, count + 1)])
        if self.rng.random() < 0.3:
            batch = self.mutator.message(batch)
        data = batch.SerializeToString()
        return (self.mutator.data(data) if self.rng.random() < 0.2 else data), count

    def opening(self) -> bytes:
        """The first message of a stream, wrong."""
        if self.rng.random() < 0.3:
            return self.mutator.noise()
        batch = FrameBatch(hello=hello())
        if self.rng.random() < 0.5:
            return self.mutator.message(batch).SerializeToString()
        return self.mutator.data(batch.SerializeToString())


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
            outcomes += await open_session.ask([makers.reference(mine) for _ in range(BATCH)])
    assert outcomes["answered"] and outcomes.total() > outcomes["answered"], outcomes


async def large_frames(target: Target, makers: Makers, count: int) -> None:
    """Requests with large payloads, one at a time."""
    outcomes: Counter[str] = Counter()
    async with session(target) as open_session, asyncio.timeout(SECONDS + count):
        for _ in range(count):
            outcomes += await open_session.ask([makers.large()])
    assert outcomes.total() > outcomes["WireError"] > 0 and not outcomes["answered"], outcomes


LEVELS = [  # and the share of the frames that each sends
    (bytes_on_the_stream, 0.05),
    (batches_of_frames, 0.25),
    (requests, 0.4),
    (messages_about_references, 0.297),
    (large_frames, 0.003),
]
Level = Callable[[Target, Makers, int], Any]


async def frames_of(target: Target, level: Level, seed: int, count: int) -> None:
    """Warms up, sends, and asserts that the worker holds no more than before."""
    await level(target, Makers(seed + 1), max(BATCH, count // 20))
    before = target.resident()
    await level(target, Makers(seed), count)
    grown = target.resident() - before
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
