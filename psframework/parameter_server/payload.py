"""The bulk side of a shard's calls: where gradients and values lie, and how they come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from psframework.backend import dtype_from_name
from psframework.errors import WireError
from psframework.parameter_server.partition import Partition
from psframework.parameter_server.sources import Arena, Parts, Source, part_array
from psframework.parameter_server.table import Gradient, Pull, Table
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.call import Call
from psframework.wire.compress import Compression, parse, wire_dtype

BATCH: Final = 8
"""Partitions of a push that are applied in one go while others arrive: each go costs two thread switches."""

Part = Callable[[int], memoryview]
"""The bytes of the partition at a position."""


def positions_of(table: Table, indices: Iterable[int]) -> list[int]:
    """Positions of partitions; WireError if one is not on this shard."""
    try:
        return [table.position[index] for index in indices]
    except KeyError as error:
        raise WireError(f"partition {error} is not on this shard") from None


def shared_arena(table: Table, place: pb.Place, call: Call) -> Arena:
    """Memory of the caller; WireError if it shares none there."""
    return Arena(call.segments(place.segment).view(place.offset, table.model_end), table.model_offsets)


async def source_of(
    table: Table,
    positions: Sequence[int],
    call: Call,
    place: pb.Place | None,
    compression: Compression = Compression.NONE,
) -> Source:
    """Where the values of these partitions lie: in the caller's memory, or in the payload."""
    if place is not None:
        return shared_arena(table, place, call)
    views = await call.payload.whole()
    if len(views) == 1 and len(positions) != 1:  # a stock stub sends all in one
        views = _cut(views[0], [table.partitions[p] for p in positions], compression)
    if len(views) != len(positions):
        raise WireError(f"{len(positions)} partitions are announced, {len(views)} came")
    return Parts({p: part_array(view, table.partitions[p], compression) for p, view in zip(positions, views)})


def arriving(
    table: Table, request: pb.PushRequest, positions: Sequence[int], call: Call
) -> Callable[[], AsyncIterator[Gradient]] | None:
    """The gradients of partitions as they come; None if all are here, or it is not one part for each."""
    payload = call.payload
    if payload.is_here or len(payload.sizes) != len(positions):
        return None
    compression = parse(request.compression or "none")

    async def gradients() -> AsyncIterator[Gradient]:
        async for batch in payload.batches(BATCH):
            arrays = {
                positions[i]: part_array(view, table.partitions[positions[i]], compression)
                for i, view in batch
            }
            yield Gradient(request.writer, request.sequence, Parts(arrays), frozenset(arrays))

    return gradients


def _cut(view: memoryview, partitions: Sequence[Partition], compression: Compression) -> list[memoryview]:
    views, begin = [], 0
    for partition in partitions:
        end = begin + partition.size * wire_dtype(dtype_from_name(partition.dtype), compression).itemsize
        views.append(view[begin:end])
        begin = end
    if begin != len(view):
        raise WireError(f"{len(view)} bytes came for partitions of {begin} bytes")
    return views


def reply_parts(table: Table, pull: Pull, part: Part | None, call: Call) -> None:
    """One part for each partition here, so that the caller knows where each belongs; empty if unchanged."""
    if part is None or not pull.changed:
        return
    changed = set(pull.changed)
    call.reply_parts([part(p) if p in changed else b"" for p in range(len(table.partitions))])


def stream_parts(table: Table, pull: Pull, part: Part, positions: AsyncIterator[int], call: Call) -> None:
    """As `_reply_parts`, for values that are still being made."""
    changed = set(pull.changed)
    sizes = [p.nbytes if i in changed else 0 for i, p in enumerate(table.partitions)]

    async def parts() -> AsyncIterator[tuple[int, memoryview]]:
        for position, size in enumerate(sizes):
            if not size:
                yield position, memoryview(b"")
        async for position in positions:
            yield position, part(position)

    call.reply_parts(parts(), sizes)
