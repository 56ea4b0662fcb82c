"""Generators that run for peers: each runs ahead of its consumer, but only so far.

A producer task takes items from the generator, encodes each at once (the generator may change what it yielded
as soon as it goes on), and stops while enough of them wait. An error of the generator waits behind the items
before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing
from typing import Any, Final

from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values.journey import Journey, Outcome
from psframework.wire.memory import Buffer

log = logging.getLogger("psframework.rpc")

MOST_ITEMS: Final = 256
MOST_BYTES: Final = 4 << 20
ITEM_BYTES: Final = 256
END_SECONDS: Final = 1.0  # for generators that pay no heed to being cancelled, when the process leaves

Packed = tuple[Value, list[Buffer], Journey]


class Stream:
    """One generator, and the items of it that nobody has fetched yet.

    Args:
        max_items: how many may wait; 0 for the default.
        max_bytes: about how many bytes they may have; 0 for the default.
    """

    def __init__(self, max_items: int = 0, max_bytes: int = 0) -> None:
        self._max_items = min(max_items or MOST_ITEMS, MOST_ITEMS)
        self._max_bytes = min(max_bytes or MOST_BYTES, MOST_BYTES)
        self._ready: deque[Packed] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._fetching = False
        self._began = self._unwanted = False
        self.task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Items that wait for the consumer."""
        return len(self._ready)

    async def produce(
        self,
        items: AsyncIterator[Any],
        pack: Callable[[Any], Awaitable[Packed]],
        admission: AbstractContextManager[object],
    ) -> None:
        """Runs the generator to its end; the body of a task."""
        self._began = True
        try:
            with admission:
                if self._unwanted:
                    raise asyncio.CancelledError
                async with aclosing(items) as closing:  # type: ignore[type-var]
                    async for item in closing:
                        await self._put(await pack(item))
                        del item
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._changed.set()

    async def fetch(self) -> tuple[list[Packed], bool]:
        """All items that are ready, at least one unless the generator has ended; and whether it has.

        Raises:
            Exception: what the generator raised, once all items before it were fetched.
        """
        if self._fetching:
            raise WireError("this stream is being read already: one call of NextItems at a time")
        self._fetching = True
        try:
            while not self._ready and not self._ended:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._fetching = False
        if not self._ready and self._error is not None:
            raise self._error
        items = list(self._ready)
        self._ready.clear()
        self._bytes = 0
        self._room.set()
        return items, self._ended and self._error is None

    def close(self) -> None:
        """Ends the generator, also one that pays no heed to being cancelled; what it produced is dropped."""
        # A task that is cancelled before its first step never runs at all, so its admission would stay.
        self._unwanted = True
        if self._began and self.task is not None:
            self.task.cancel()
        refuse(self._ready)
        self._ready.clear()

    async def _put(self, packed: Packed) -> None:
        if self._unwanted:  # its generator went on all the same
            refuse([packed])
            raise asyncio.CancelledError
        value, parts, _ = packed
        self._ready.append(packed)
        self._bytes += ITEM_BYTES + value.ByteSize() + sum(map(len, parts))
        self._changed.set()
        while len(self._ready) >= self._max_items or self._bytes >= self._max_bytes:
            self._room.clear()
            await self._room.wait()


def refuse(items: Iterable[Packed]) -> None:
    """These will never arrive: what rides in them stays here."""
    for _, _, journey in items:
        journey.end(Outcome.REFUSED)


class Streams:
    """The streams of one process. Whoever opened one owns it: others can't read it, and its loss ends it."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[object, Stream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # also of closed ones, which may take a while to end
        self._last = 0

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, owner: object, stream: Stream, work: Callable[[Stream], Any]) -> int:
        """Starts the task of a stream and returns its number."""
        self._last += 1
        number = self._last
        self._streams[number] = owner, stream
        stream.task = asyncio.get_running_loop().create_task(work(stream), name=f"psf-stream-{number}")
        self._tasks.add(stream.task)
        stream.task.add_done_callback(self._tasks.discard)
        return number

    def find(self, owner: object, number: int) -> Stream:
        """WireError if this owner has no such stream."""
        found = self._streams.get(number)
        if found is None or found[0] is not owner:
            raise WireError(f"no stream {number} is open: it has ended, or another peer's call opened it")
        return found[1]

    def close(self, owner: object, number: int) -> None:
        """Ends a stream; nothing happens if it has ended."""
        found = self._streams.get(number)
        if found is not None and found[0] is owner:
            del self._streams[number]
            found[1].close()

    def close_all_of(self, owner: object) -> None:
        """The owner is lost."""
        for number, (holder, _) in list(self._streams.items()):
            if holder is owner:
                self.close(owner, number)

    async def end(self) -> None:
        """The process ends: all generators are finalized."""
        for owner, _ in list(self._streams.values()):
            self.close_all_of(owner)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_SECONDS)
