"""Where gradients lie, and how they come: whole, cut, or one partition after the other."""

from __future__ import annotations

import numpy as np
import pytest

from psframework import optim
from psframework.errors import WireError
from psframework.parameter_server import payload as payload_module
from psframework.parameter_server.layout import Layout, ParameterSpec
from psframework.parameter_server.partition import Balanced
from psframework.parameter_server.payload import arriving, positions_of, reply_parts, source_of, stream_parts
from psframework.parameter_server.sources import Piece
from psframework.parameter_server.table import Pull, Table
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.call import Call, Incoming, PeerInfo
from psframework.rpc.deadline import Deadline

PEER = PeerInfo("a", "worker", "job", 1)


def table() -> Table:
    layout = Layout.of([ParameterSpec("w", "float32", (300_000,)), ParameterSpec("d", "float64", (4,))])
    return Table(Balanced().cut(layout, 1), optim.SGD(lr=1.0).rule)


def call(payload: Incoming) -> Call:
    return Call(PEER, Deadline.after(5), payload)


def bytes_of(t: Table) -> list[memoryview]:
    return [memoryview(bytes([i + 1]) * p.nbytes) for i, p in enumerate(t.partitions)]


def first(source, t: Table, position: int) -> int:
    partition = t.partitions[position]
    return source.array(Piece(position, position + 1, partition.dtype, partition.size)).view(np.uint8)[0]


async def test_parts_are_taken_one_for_each_partition_or_cut_from_one():
    t = table()
    views = bytes_of(t)
    positions = list(range(len(views)))
    for parts in (views, [memoryview(b"".join(views))]):
        source = await source_of(t, positions, call(Incoming([len(p) for p in parts], parts)), None)
        assert [first(source, t, i) for i in positions] == [i + 1 for i in positions]


async def test_wrong_sizes_are_refused():
    t = table()
    part = memoryview(bytes(8))
    with pytest.raises(WireError, match="came for partitions"):
        await source_of(t, [0, 1], call(Incoming([8], [part])), None)
    with pytest.raises(WireError, match="are announced"):
        await source_of(t, [0], call(Incoming([8, 8], [part, part])), None)
    with pytest.raises(WireError, match="not on this shard"):
        positions_of(t, [99])


async def test_gradients_come_in_batches_in_the_order_of_arrival(monkeypatch):
    monkeypatch.setattr(payload_module, "BATCH", 1)
    t = table()
    views = bytes_of(t)
    payload = Incoming([len(v) for v in views])
    come = arriving(t, pb.PushRequest(writer=7, sequence=3), range(len(views)), call(payload))
    assert come is not None
    gradients = come()
    for position in reversed(range(len(views))):
        payload.feed(position, views[position])
        gradient = await anext(gradients)
        assert (gradient.writer, gradient.sequence, gradient.present) == (7, 3, {position})
        assert first(gradient.source, t, position) == position + 1
    assert [g async for g in gradients] == []


async def test_there_is_nothing_to_wait_for_if_all_is_here_or_in_one_part():
    t = table()
    views = bytes_of(t)
    here = Incoming([len(v) for v in views], views)
    positions = range(len(views))
    assert arriving(t, pb.PushRequest(), positions, call(here)) is None
    assert arriving(t, pb.PushRequest(), positions, call(Incoming([9]))) is None


async def test_replies_have_a_part_for_each_partition_empty_if_unchanged():
    t = table()
    last = len(t.partitions) - 1
    pull = Pull(changed=[last], versions=[2])
    sizes = tuple(0 if i < last else t.partitions[i].nbytes for i in range(last + 1))
    listed, streamed = call(Incoming([])), call(Incoming([]))
    reply_parts(t, pull, t.part, listed)
    assert listed.reply_sizes == sizes

    async def made():
        yield last

    stream_parts(t, pull, t.part, made(), streamed)
    assert streamed.reply_sizes == sizes
    assert {i: len(part) async for i, part in streamed.reply} == dict(enumerate(sizes))
