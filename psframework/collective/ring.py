"""Reductions and all-gathers around a ring: each rank talks to the next one only.

What is combined goes around once, and what it came to once more. An array is cut so that many small rings
run at once, each over one chunk of every part: while one combines, others travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from psframework import backend
from psframework.collective import plan
from psframework.collective.algorithms import bounds
from psframework.collective.descriptor import Operation
from psframework.collective.direct import Combine
from psframework.collective.letters import FIRST_STEP, Letters, Spawn
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat, Work

LANES: Final = 8
"""Small rings that run at once."""


class Hop(NamedTuple):
    """One step of one rank.

    Attributes:
        sends: the part that goes to the next rank.
        takes: the part that comes from the rank before.
    """

    sends: int
    takes: int


def reduce_hops(rank: int, size: int) -> list[Hop]:
    """How parts are combined; at the end each rank has its own part."""
    return [Hop((rank - 1 - step) % size, (rank - 2 - step) % size) for step in range(size - 1)]


def gather_hops(rank: int, size: int) -> list[Hop]:
    """How each rank's part gets to all."""
    return [Hop((rank - step) % size, (rank - 1 - step) % size) for step in range(size - 1)]


def parts(array: Flat, size: int) -> list[Flat]:
    """Cuts an array into the parts of all ranks."""
    return [array[start:stop] for start, stop in pairwise(bounds(len(array), size))]


def lanes(array: Flat, size: int) -> Iterator[list[slice]]:
    """For each small ring: which elements of each part it is about."""
    cuts = [list(plan.chunks(part)) for part in parts(array, size)]
    for index in range(max(map(len, cuts))):
        yield [each[index] if index < len(each) else slice(0, 0) for each in cuts]


class Lane(NamedTuple):
    """One small ring: chunks of all parts.

    Attributes:
        step: number of its first letter.
        given: this rank's, to be combined; none if nothing is.
        mine: where its own part's comes to.
        results: where all parts' come to; none if each rank keeps its own only.
    """

    step: int
    given: list[Flat]
    mine: Flat
    results: list[Flat]


class Ring:
    """One operation.

    Args:
        letters: of the operation; descriptors are exchanged, and the same.
        work: what to do.
        combine: combines arrays.
        spawn: makes a task of each small ring; the operation has ended when they have.
    """

    def __init__(self, letters: Letters, work: Work, combine: Combine, spawn: Spawn) -> None:
        self._letters, self._work, self._combine, self._spawn = letters, work, combine, spawn
        self._rank, self._size = letters.rank, letters.size
        self._next, self._before = (self._rank + 1) % self._size, (self._rank - 1) % self._size
        self._turns = asyncio.Semaphore(LANES)

    async def run(self) -> None:
        """Starts it."""
        send, receive, operation = self._work.send, self._work.receive, self._work.descriptor.operation
        if send is None or receive is None:
            return
        gathers, adds = operation is not Operation.REDUCE_SCATTER, operation is not Operation.ALL_GATHER
        given = parts(send, self._size) if adds else []
        results = parts(receive, self._size) if gathers else []
        mine = results[self._rank] if gathers else receive
        if not adds:
            np.copyto(mine, send)
        for index, cuts in enumerate(lanes(receive if gathers else send, self._size)):
            lane = Lane(
                FIRST_STEP + 1 + 2 * index * self._size,
                [part[cut] for part, cut in zip(given, cuts)],
                mine[cuts[self._rank]],
                [part[cut] for part, cut in zip(results, cuts)],
            )
            self._spawn(self._run(lane))

    async def _run(self, lane: Lane) -> None:
        async with self._turns:
            sent = await self._add(lane) if lane.given else None
            for step, hop in enumerate(gather_hops(self._rank, self._size) if lane.results else ()):
                number = lane.step + self._size + step
                self._letters.send(self._next, number, lane.results[hop.sends])
                target = lane.results[hop.takes]
                came = await self._letters.take(self._before, number, target)
                if sent is not None:  # the same memory holds what was sent first
                    await sent
                plan.place(came, target)

    async def _add(self, lane: Lane) -> asyncio.Task[None]:
        """Combines this rank's part of a lane; returns the one send that is of the user's array.

        What is combined so far travels in float32 if the array has 16 bits, and is rounded once, at the end.
        """
        op, total = self._work.descriptor.op or ReduceOp.SUM, lane.given[(self._rank - 1) % self._size]
        wide = np.dtype(np.float32) if backend.is_narrow(total.dtype) else total.dtype
        sends: list[asyncio.Task[None]] = []
        for step, hop in enumerate(reduce_hops(self._rank, self._size)):
            sends.append(self._letters.send(self._next, lane.step + step, total))
            mine, last = lane.given[hop.takes], step == self._size - 2
            came = await self._letters.take(self._before, lane.step + step, mine, wide if step else None)
            total = lane.mine if last else np.empty(len(mine), wide)
            await self._combine(op, [came, plan.parts(mine)], self._size if last else 1, total)
        return sends[0]
