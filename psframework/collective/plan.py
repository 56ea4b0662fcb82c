"""Which elements each rank gives to which, in operations that go over the network directly. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from psframework.collective.algorithms import bounds
from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat, Work
from psframework.errors import ArgumentError

PART_BYTES: Final = 1 << 20
"""Bytes of a part of a letter: what the striped lane moves at once, so nothing is put together on arrival."""

MOST_PARTS: Final = 4
"""Parts of a letter, so that a large array is not too many letters; and at most a quarter of what is sent."""


SPREAD_BYTES: Final = 1 << 20
"""From so many bytes on, a broadcast goes out in parts, which the other ranks hand on to each other."""


class Sum(NamedTuple):
    """What a rank combines.

    Attributes:
        op: how.
        own: what it adds itself.
        into: where the result goes; maybe the same memory.
    """

    op: ReduceOp
    own: Flat
    into: Flat


def spreads(work: Work, size: int) -> bool:
    """Whether it is a broadcast in parts: its root sends an array twice, and not to each rank all of it."""
    array = work.receive if work.send is None else work.send
    large = array is not None and array.nbytes >= SPREAD_BYTES
    return large and size > 2 and work.descriptor.operation is Operation.BROADCAST


def gives(work: Work, rank: int, size: int, *, whole: bool = False) -> dict[int, Flat]:
    """What this rank sends to each other rank first. It is known before any descriptor was compared.

    Args:
        work: what it is about to do.
        rank: this one.
        size: number of ranks.
        whole: an all-reduce is done in one round, in which each rank combines all of it.
    """
    send, operation, root = work.send, work.descriptor.operation, work.descriptor.root
    others = [each for each in range(size) if each != rank]
    if send is None or operation in (Operation.BARRIER, Operation.REFUSE):
        return {}
    if operation in (Operation.REDUCE, Operation.GATHER):
        return {} if rank == root else {root: send}
    if operation in (Operation.BROADCAST, Operation.SCATTER) and rank != root:
        return {}
    copies = operation is Operation.BROADCAST and not spreads(work, size)
    if copies or operation is Operation.ALL_GATHER or whole:
        return dict.fromkeys(others, send)
    borders = bounds(len(send), size)
    return {each: send[borders[each] : borders[each + 1]] for each in others}


def adds(work: Work, rank: int, size: int, *, whole: bool = False) -> Sum | None:
    """What this rank combines of what the others gave, if it is to."""
    send, receive, operation, op = work.send, work.receive, work.descriptor.operation, work.descriptor.op
    if send is None or receive is None or op is None:
        return None
    if operation is Operation.REDUCE or (operation is Operation.ALL_REDUCE and whole):
        return Sum(op, send, receive)
    borders = bounds(len(send), size)
    part = slice(borders[rank], borders[rank + 1])
    if operation is Operation.REDUCE_SCATTER:
        return Sum(op, send[part], receive)
    if operation is Operation.ALL_REDUCE:
        return Sum(op, send[part], receive[part])
    return None


def takes(work: Work, rank: int, size: int) -> dict[int, Flat]:
    """Where that of each rank goes which is only copied; its own too, unless it is there already.

    Of an all-reduce: the parts that the others have combined.
    """
    receive, operation, root = work.receive, work.descriptor.operation, work.descriptor.root
    if receive is None or operation in (Operation.REDUCE, Operation.REDUCE_SCATTER):
        return {}
    if operation in (Operation.BROADCAST, Operation.SCATTER):
        return {root: receive}
    borders = bounds(len(receive), size)
    ranks = [each for each in range(size) if each != rank or operation is not Operation.ALL_REDUCE]
    return {each: receive[borders[each] : borders[each + 1]] for each in ranks}


def own(work: Work, rank: int, size: int) -> Flat:
    """What this rank would send to itself, of an operation that only copies."""
    if work.send is None:
        raise ArgumentError(f"{work.descriptor} needs an array")
    if work.descriptor.operation in (Operation.SCATTER, Operation.ALL_TO_ALL):
        borders = bounds(len(work.send), size)
        return work.send[borders[rank] : borders[rank + 1]]
    return work.send


def chunks(array: Flat, nbytes: int = PART_BYTES) -> Iterator[slice]:
    """Cuts an array into letters: at least one, all of as many parts of `nbytes` but the last."""
    parts = min(MOST_PARTS, max(1, array.nbytes // (4 * nbytes)))
    each = _elements(array, nbytes) * parts
    for start in range(0, max(1, len(array)), each):
        yield slice(start, min(start + each, len(array)))


def parts(chunk: Flat, nbytes: int = PART_BYTES) -> list[Flat]:
    """Cuts a chunk into the parts of its letter: at least one, all of `nbytes` but the last."""
    each = _elements(chunk, nbytes)
    return [chunk[start : start + each] for start in range(0, max(1, len(chunk)), each)]


def place(came: Sequence[Flat], into: Flat) -> None:
    """Copies the parts of a letter to where their chunk belongs."""
    for part, target in zip(came, parts(into), strict=True):
        np.copyto(target, part)


def _elements(array: Flat, nbytes: int) -> int:
    """Of a part: as many of 16 bits as of the float32 in which they are combined."""
    return max(1, nbytes // max(4, array.itemsize))
