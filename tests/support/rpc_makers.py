"""Frames, requests and values of calls that nobody should send, made from right ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import remote_functions
from fuzz import Mutator

import psframework as psf
from psframework import nn
from psframework.proto.v1 import remote_pb2 as pb
from psframework.proto.v1 import rref_pb2 as refs
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame, FrameBatch, Hello, Identity, LinkState
from psframework.rpc.values import arguments, kinds
from psframework.rpc.values.journey import Journey

MIB = 1 << 20
LARGEST = 8 * MIB  # bytes of a frame here
ADD = "remote_functions.add"
RREFS = "/psframework.proto.v1.RRefService/"
REMOTE = "/psframework.proto.v1.RemoteService/"
_NN, _OWN = "psframework.nn.", "remote_functions."
TEXTS = ["int32", "float", "cuda:0", "2026-11-30", "UTC", "rref", _NN + "Linear", _NN + "GRU", _OWN + "add",
         _OWN + "Net", _OWN + "Batch", _OWN + "Colour", "RED"]  # fmt: skip
_ABOUT_FORKS = ("delete", "registered", "refused", "deleted")
_ABOUT_HOLDS = ("unhold", "unheld", "ask", "not_held")
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


def hello(incarnation: int | None = None) -> Hello:
    """Of a member that nobody knows."""
    sender = Identity(
        name="fuzz", role="trainer", job="default", incarnation=incarnation or next(incarnations)
    )
    state = LinkState(window=128 * MIB, lanes=[frames.INLINE, frames.STRIPED])
    return Hello(protocol=frames.PROTOCOL, session=os.urandom(16), connection=1, sender=sender, state=state)


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
        (nn.Linear(3, 4), [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU()).eval()]),
        (nn.LSTM(2, 3, 2), {"more": (nn.Embedding(5, 2), nn.Conv2d(1, 2, 3).half())}),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2), nn.RotaryEmbedding(4, 9)),
        (remote_functions.Net(nn.Linear(2, 4), 3), nn.ModuleDict({"a": nn.PReLU(3)})),
        (remote_functions.Batch(np.ones(3), [{"k": {(1, None): 2.5}}]), remote_functions.Colour.RED),
        ([[[[[[frozenset([(1, (2,))])]]]]]], {i: {str(i): [i]} for i in range(9)}),
    ]


def invoke(args: tuple[Any, ...]) -> pb.InvokeRequest:
    """A call, as it should be."""
    value = arguments.encode_call(args, {}, Journey())
    return pb.InvokeRequest(function=ADD, arguments=value, metadata={"a": "b"})


def large_modules() -> list[tuple[pb.Value, list[bytes]]]:
    """Calls with layers of a megabyte or a few, and their parts."""
    layers: list[nn.Module] = [
        nn.Linear(600, 700),
        nn.Embedding(3000, 200),
        nn.MultiheadAttention(300, 3),
        nn.LSTM(100, 200, 2),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512), 3),
        nn.SinusoidalPositionalEncoding(128, 2000),
        nn.Linear(500, 900).half(),
        remote_functions.Net(nn.Linear(500, 500), 3),
    ]
    made = []
    for layer in layers:
        journey = Journey()
        value = arguments.encode_call((layer, 1), {}, journey)
        made.append((value, [bytes(part) for part in journey.parts]))
    return made


def outlines(mutator: Mutator) -> pb.Value:
    """A value whose nodes are random, beside enough of what nodes consist of."""
    rng = mutator.rng
    return pb.Value(
        outline=bytes(rng.choice((*range(64), 128, 255)) for _ in range(rng.randrange(60))),
        integers=[rng.getrandbits(20) for _ in range(5)],
        reals=[rng.random() for _ in range(5)],
        texts=rng.choices(TEXTS, k=5),
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

    def carrying(self, mine: int, worker: int) -> pb.InvokeRequest:
        """A call with a reference in its arguments, from the process `mine` to the worker."""
        rng = self.rng
        owner = rng.choice((mine, mine, worker, worker, 7))
        handle = refs.RRefHandle(
            rref=refs.RRefId(worker=owner, counter=rng.getrandbits(4)),
            owner=owner,
            owner_name="fuzz",
            hold=refs.HoldId(sender=mine, counter=rng.getrandbits(20)),
            receiver=worker,
        )
        if rng.random() < 0.3:
            handle.parent.CopyFrom(refs.ForkId(holder=mine, counter=rng.getrandbits(4)))
        data = self.mutator.message(handle, changes=(0, 0, 1)).SerializeToString()
        outline = [kinds.TUPLE, 2, kinds.TUPLE, 2, kinds.PASSENGER, 0, kinds.NONE, kinds.DICT, 0]
        value = pb.Value(outline=bytes(outline), texts=["rref"], blobs=[data])
        return pb.InvokeRequest(function=ADD, arguments=value)

    def beyond(self, value: pb.Value, parts: Sequence[bytes]) -> Request:
        """A call with a module whose arguments may ask for more than its state has."""
        rng, call = self.rng, pb.InvokeRequest(function=ADD, arguments=value)
        integers = call.arguments.integers
        for at in rng.sample(range(len(integers)), k=min(len(integers), rng.choice((0, 1, 1, 2, 3)))):
            integers[at] = rng.choice((integers[at] + 1, 2 * integers[at], 5000, 20_000, 1 << 20, 1 << 40))
        return Request(REMOTE + "Invoke", call.SerializeToString(), parts)

    def reference(self, mine: int, worker: int) -> Request:
        """A request of RRefService, from the process whose incarnation is `mine`, to the worker."""
        rng, one = self.rng, refs.RRefId(worker=mine, counter=self.rng.getrandbits(4))
        fork = refs.ForkId(holder=mine, counter=rng.getrandbits(4))
        hold = refs.HoldId(sender=mine, counter=rng.getrandbits(4))
        told = [
            refs.ReferenceMessage(
                register=refs.ForkRegistration(fork=fork, rref=one, parent=fork, hold=hold)
            ),
            refs.ReferenceMessage(broken=refs.ForkBreakage(fork=fork, rref=one)),
            *(
                refs.ReferenceMessage(**{kind: fork})
                for kind in ("delete", "registered", "refused", "deleted")
            ),
            *(refs.ReferenceMessage(**{kind: hold}) for kind in ("unhold", "unheld", "ask", "not_held")),
        ]
        call = self.carrying(mine, worker) if rng.random() < 0.3 else rng.choice(self._calls)
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
