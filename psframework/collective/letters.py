"""The letters of one operation, on one rank: descriptors first, then chunks of arrays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import numpy as np

from psframework.collective import agreement
from psframework.collective.descriptor import Descriptor
from psframework.collective.plan import chunks, parts
from psframework.collective.post import Key, Letter, Post
from psframework.collective.work import Flat, Work
from psframework.errors import DeadlineExceeded, WireError
from psframework.wire.memory import Buffer
from psframework.wire.spec import as_bytes

FIRST_STEP: Final = 64
"""Number of a chunk that may go with the descriptor instead; further ones count on."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Makes a task."""


class Letters:
    """Sends and takes the letters of one operation.

    Args:
        post: what carries them.
        channel: the transport's; see `Key`.
        work: the operation.
        spawn: makes a task of each send.
    """

    def __init__(self, post: Post, channel: str, work: Work, spawn: Spawn) -> None:
        self.rank, self.size, self.deadline = post.rank, post.size, work.deadline
        self._post, self._channel, self._spawn = post, channel, spawn
        self._descriptor = work.descriptor
        self._early: dict[int, Letter] = {}  # the chunks that came with descriptors
        self._rode: dict[int, asyncio.Task[None]] = {}
        self._late: set[int] = set()

    @property
    def others(self) -> list[int]:
        """All ranks but this one; each rank begins with the next, so that not all begin with the same."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    # Descriptors

    async def agree(self, first: Mapping[int, Flat]) -> dict[int, Descriptor]:
        """Exchanges descriptors with all ranks, and with each the first chunk of what it is given.

        Returns:
            By rank; among many ranks only one of each kind. Each rank gets the same.

        Raises:
            DeadlineExceeded: names the ranks that did not come.
        """
        if self.size > agreement.MESH:
            return await self._agree_in_rounds()
        header = self._descriptor.encode()
        for rank in self.others:
            given = first.get(rank)
            if given is None:
                self._send(rank, 0, header, [])
            else:
                self._rode[rank] = self._send(rank, 0, header, _bytes(given[next(chunks(given))]))
        self._early = await self._from_all(0)
        found = {rank: Descriptor.decode(letter.header) for rank, letter in self._early.items()}
        return {**found, self.rank: self._descriptor}

    async def _agree_in_rounds(self) -> dict[int, Descriptor]:
        known = {self.rank: self._descriptor}
        for step, distance in enumerate(agreement.distances(self.size)):
            to, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            self._send(to, step, agreement.encode(known), [])
            letter = await self._from(source, step)
            known = agreement.distinct({**agreement.decode(letter.header), **known})
        return known

    async def _from_all(self, step: int) -> dict[int, Letter]:
        """A letter of each rank. At the deadline, all that are missing are named."""
        letters: dict[int, Letter] = {}
        for rank in self.others:
            try:
                letters[rank] = await self._from(rank, step)
            except DeadlineExceeded:
                self._late.add(rank)
        self.check()
        return letters

    def check(self) -> None:
        """DeadlineExceeded if a rank has missed the deadline."""
        if self._late:
            numbers, known = self._post.numbers, self._post.names
            names = ", ".join(f"{numbers[rank]} ({known[rank]})" for rank in sorted(self._late))
            ranks = "ranks" if len(self._late) > 1 else "rank"
            number, what = self._descriptor.sequence, self._descriptor
            raise DeadlineExceeded(f"operation {number}, {what}: {ranks} {names} did not come in time")

    # Arrays

    def send(self, to: int, step: int, array: Flat) -> asyncio.Task[None]:
        """Sends a chunk, unless it went with the descriptor; the result ends when it has arrived."""
        if step == FIRST_STEP and to in self._rode:
            return self._rode[to]
        return self._send(to, step, b"", _bytes(array))

    async def take(
        self, source: int, step: int, like: Flat, dtype: np.dtype[Any] | None = None
    ) -> list[Flat]:
        """A chunk that another rank sent, cut into parts as `like` would be; read-only.

        Args:
            source: which rank.
            step: as it was sent.
            like: has as many elements.
            dtype: of what was sent, if it is not that of `like`.

        Raises:
            WireError: it is of another length, or cut in another way.
        """
        letter = self._early.pop(source, None) if step == FIRST_STEP else None
        if letter is None:
            letter = await self._from(source, step)
        dtype = dtype or like.dtype
        came = [part.nbytes for part in letter.parts] or [0]
        wanted = [len(part) * dtype.itemsize for part in parts(like)]
        if came != wanted:
            raise WireError(
                f"rank {self._post.numbers[source]} sent parts of {came} bytes where {wanted} belong"
            )
        return [np.frombuffer(part, dtype) for part in letter.parts] or [np.empty(0, dtype)]

    async def _from(self, source: int, step: int) -> Letter:
        key = Key(self._channel, self._descriptor.sequence, step)
        return await self._post.receive(source, key, self.deadline)

    def _send(self, to: int, step: int, header: bytes, data: Sequence[Buffer]) -> asyncio.Task[None]:
        return self._spawn(self._sending(to, step, header, data))

    async def _sending(self, to: int, step: int, header: bytes, data: Sequence[Buffer]) -> None:
        key = Key(self._channel, self._descriptor.sequence, step)
        try:
            await self._post.send(to, key, header, data, self.deadline)
        except DeadlineExceeded:
            self._late.add(to)


def _bytes(chunk: Flat) -> list[memoryview]:
    return [as_bytes(part) for part in parts(chunk)]
