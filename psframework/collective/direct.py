"""Operations in which each rank sends its data straight to those that need it.

An all-reduce is a reduce-scatter, in which each rank combines its part of all arrays in rank order, and an
all-gather of the parts. Chunks go through both, one after the other: while one is combined, others travel.
A large broadcast is a scatter and an all-gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from psframework.collective import plan
from psframework.collective.algorithms import bounds
from psframework.collective.descriptor import Operation
from psframework.collective.letters import FIRST_STEP, Letters, Spawn
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat, Work

Combine = Callable[[ReduceOp, Sequence[Sequence[Flat]], int, Flat], Awaitable[None]]
"""`algorithms.combine` of chunks that lie in parts, wherever it may take its time."""


WINDOW: Final = 8
"""Chunks to one rank that are on their way at once: enough to hide their replies, and not all of an array."""


class Direct:
    """One operation.

    Args:
        letters: of the operation; descriptors are exchanged, and the same.
        work: what to do.
        combine: combines arrays.
        spawn: makes a task of each thing done at once; the operation has ended when they have.
    """

    def __init__(self, letters: Letters, work: Work, combine: Combine, spawn: Spawn) -> None:
        self._letters, self._work, self._combine, self._spawn = letters, work, combine, spawn
        self._sent: dict[tuple[int, int], asyncio.Task[None]] = {}

    async def exchange(self, given: Mapping[int, Flat], *, copied: bool) -> None:
        """An all-reduce in which each rank sends everything to all, and combines everything itself.

        Args:
            given: what `plan.gives` said.
            copied: it is not the memory that the result goes to.
        """
        letters, ahead = self._letters, 0
        total = plan.adds(self._work, letters.rank, letters.size, whole=True)
        if total is None:
            return
        cuts = list(plan.chunks(total.into))
        for index, cut in enumerate(cuts):
            while ahead < min(index + WINDOW, len(cuts)):
                for rank, array in given.items():
                    step = FIRST_STEP + 2 * ahead
                    self._sent[rank, ahead] = letters.send(rank, step, array[cuts[ahead]])
                ahead += 1
            came = await self._take_all(FIRST_STEP + 2 * index, total.own[cut])
            for rank in given if not copied else ():
                await self._sent[rank, index]
            await self._combine(total.op, came, letters.size, total.into[cut])

    async def run(self, given: Mapping[int, Flat]) -> None:
        """Any operation; `given` is what `plan.gives` said."""
        letters, work = self._letters, self._work
        for rank, array in given.items():
            self._spawn(self._give(rank, array))
        if plan.spreads(work, letters.size):
            await self._spread()
            return
        takes = plan.takes(work, letters.rank, letters.size)
        mine = takes.pop(letters.rank, None)
        if mine is not None:
            np.copyto(mine, plan.own(work, letters.rank, letters.size))
        shares = work.descriptor.operation is Operation.ALL_REDUCE
        for source, target in takes.items():
            self._spawn(self._take_from(source, target, shares))
        total = plan.adds(work, letters.rank, letters.size)
        if total is not None:
            await self._add(total, shares)

    async def _give(self, rank: int, array: Flat) -> None:
        for index, cut in enumerate(plan.chunks(array)):
            if index >= WINDOW:
                await self._sent[rank, index - WINDOW]
            self._sent[rank, index] = self._letters.send(rank, FIRST_STEP + 2 * index, array[cut])

    async def _spread(self) -> None:
        """A broadcast: each rank hands its part on to all but the root, which has the others' already."""
        letters, work, root = self._letters, self._work, self._work.descriptor.root
        array = work.receive if work.send is None else work.send
        assert array is not None
        parts = [array[start:stop] for start, stop in pairwise(bounds(len(array), letters.size))]
        mine = parts[letters.rank]
        if letters.rank != root:
            for source in letters.others:
                self._spawn(self._take_from(source, parts[source], True))
        for index, cut in enumerate(plan.chunks(mine)):
            step = FIRST_STEP + 2 * index
            if letters.rank != root:
                plan.place(await letters.take(root, step, mine[cut]), mine[cut])
            for rank in letters.others:
                if rank != root:
                    letters.send(rank, step + 1, mine[cut])

    async def _add(self, total: plan.Sum, shares: bool) -> None:
        """Combines this rank's part, and sends each chunk to all others if it `shares`."""
        letters = self._letters
        for index, cut in enumerate(plan.chunks(total.into)):
            step = FIRST_STEP + 2 * index
            came = await self._take_all(step, total.own[cut])
            await self._combine(total.op, came, letters.size, total.into[cut])
            if shares:
                for rank in letters.others:
                    letters.send(rank, step + 1, total.into[cut])

    async def _take_all(self, step: int, own: Flat) -> list[list[Flat]]:
        """A chunk of each rank, in their order."""
        letters = self._letters
        return [
            plan.parts(own) if rank == letters.rank else await letters.take(rank, step, own)
            for rank in range(letters.size)
        ]

    async def _take_from(self, source: int, target: Flat, shared: bool) -> None:
        """Copies what a rank gave, or what it has combined and `shared`."""
        for index, cut in enumerate(plan.chunks(target)):
            step, into = FIRST_STEP + 2 * index + shared, target[cut]
            came = await self._letters.take(source, step, into)
            if (source, index) in self._sent:  # the same memory holds what was sent there to be combined
                await self._sent[source, index]
            plan.place(came, into)
