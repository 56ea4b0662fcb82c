"""send and recv between two ranks: numbered for each pair and tag, by the group's Post."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import numpy as np

from psframework import backend
from psframework.backend import Array
from psframework.collective.arrays import HEAVY, Lent
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.post import Key, Letter, Post
from psframework.errors import ArgumentError, DeadlineExceeded, PsfError, WireError
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.future import Future
from psframework.wire.spec import as_bytes
from psframework.wire.threads import in_thread

CHANNEL: Final = "p2p"
MOST_TAG: Final = (1 << 31) - 1


class Messages:
    """Point-to-point messages of one rank. On the loop.

    Args:
        rank: this one.
        names: of the members, by rank.
        post: carries them; None in a group of one, which can only write to itself.
        broken: called with the error of a send, after which the receiver would wait for its number.
    """

    def __init__(
        self, rank: int, names: Sequence[str], post: Post | None, broken: Callable[[BaseException], object]
    ) -> None:
        self._rank, self._names, self._post, self._broken = rank, names, post, broken
        self._error: BaseException | None = None
        self._sent: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._taken: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._turns: defaultdict[tuple[int, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._coming: dict[tuple[int, int], asyncio.Future[Letter]] = {}
        self._to_self: defaultdict[int, asyncio.Queue[Array]] = defaultdict(asyncio.Queue)
        self._tasks: dict[asyncio.Task[None], Future[Any]] = {}

    def send(self, lent: Lent, to: int, tag: int, deadline: Deadline) -> Future[None]:
        """Resolves when it has arrived, whether or not it was asked for; the array is kept until then."""
        self._check(to, tag)
        future: Future[None] = Future(_it_is_sent_anyway)
        self._sent[to, tag] += 1
        self._spawn(future, self._send(future, lent, Key(CHANNEL, self._sent[to, tag], tag), to, deadline))
        return future

    def recv(self, source: int, tag: int, deadline: Deadline) -> Future[Array]:
        """The next array of that rank with that tag. Cancelled or late, it takes none."""
        self._check(source, tag)
        future: Future[Array] = Future(lambda: (task.cancel(), None)[1])
        task = self._spawn(future, self._recv(future, source, tag, deadline))
        return future

    def end(self, error: BaseException) -> None:
        """All that wait, and all that come, get `error`."""
        self._error = self._error or error
        for task, future in list(self._tasks.items()):
            _fail(future, self._error)
            task.cancel()
        for coming in self._coming.values():
            coming.cancel()

    def _check(self, rank: object, tag: object) -> None:
        if not isinstance(rank, int | np.integer) or not 0 <= rank < len(self._names):
            raise ArgumentError(f"rank {rank!r}: this group has ranks 0 to {len(self._names) - 1}")
        if not isinstance(tag, int | np.integer) or not 0 <= tag <= MOST_TAG:
            raise ArgumentError(f"tag={tag!r}: an integer from 0 to {MOST_TAG}")

    def _spawn(self, future: Future[Any], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = future
        task.add_done_callback(self._tasks.pop)
        return task

    async def _send(self, future: Future[None], lent: Lent, key: Key, to: int, deadline: Deadline) -> None:
        try:
            if self._error is not None:
                raise self._error
            flat = await in_thread(lent.load) if lent.heavy else lent.load()
            if self._post is None or to == self._rank:
                self._to_self[key.step].put_nowait(flat.reshape(lent.shape).copy())
            else:
                header = Descriptor(key.sequence, Operation.SEND, lent.dtype, lent.shape).encode()
                await self._post.send(to, key, header, [as_bytes(flat)], deadline)
            if not future.done():
                future.set_result(None)
        except Exception as error:
            self._broken(error)
            _fail(future, error)

    async def _recv(self, future: Future[Array], source: int, tag: int, deadline: Deadline) -> None:
        try:
            if self._error is not None:
                raise self._error
            async with asyncio.timeout(deadline.seconds()):
                async with self._turns[source, tag]:
                    if source == self._rank:
                        future.set_result(await self._to_self[tag].get())
                    else:
                        await self._take(future, source, tag)
        except TimeoutError as error:
            who = f"rank {source} ({self._names[source]})"
            late = DeadlineExceeded(f"{who} sent nothing with tag {tag} in time")
            _fail(future, error if isinstance(error, PsfError) else late)
        except Exception as error:
            _fail(future, error)

    async def _take(self, future: Future[Array], source: int, tag: int) -> None:
        """The letter is gone only once somebody has it: whoever gives up leaves it to the next."""
        assert self._post is not None
        coming = self._coming.get((source, tag))
        if coming is None:
            key = Key(CHANNEL, self._taken[source, tag] + 1, tag)
            coming = asyncio.ensure_future(self._post.receive(source, key, Deadline.NEVER))
            self._coming[source, tag] = coming
        try:
            array = await _opened(await asyncio.shield(coming))
        except Exception:
            del self._coming[source, tag]
            raise
        if not future.done():
            del self._coming[source, tag]
            self._taken[source, tag] += 1
            future.set_result(array)


async def _opened(letter: Letter) -> Array:
    """The array in a letter, copied: its parts pin the sender's memory."""
    sent = Descriptor.decode(letter.header)
    array = np.empty(sent.shape, backend.dtype_from_name(sent.dtype))
    nbytes = sum(part.nbytes for part in letter.parts)
    if nbytes != array.nbytes:
        raise WireError(f"{nbytes} bytes came for an array of {sent.dtype} of shape {sent.shape}")
    if nbytes >= HEAVY:
        await in_thread(_fill, array, letter.parts)
    else:
        _fill(array, letter.parts)
    return array


def _fill(array: Array, parts: Sequence[memoryview]) -> None:
    flat, at = array.reshape(-1).view(np.uint8), 0
    for part in parts:
        flat[at : at + part.nbytes] = np.frombuffer(part, np.uint8)
        at += part.nbytes


def _fail(future: Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _it_is_sent_anyway() -> None:
    """The receiver waits for its number."""
