"""The transport of ranks that only share a network: letters between all of them, or around a ring."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from psframework.collective.algorithms import combine
from psframework.collective.descriptor import Descriptor, Operation, check_agreement
from psframework.collective.direct import Direct
from psframework.collective.letters import Letters
from psframework.collective.ops import ReduceOp
from psframework.collective.plan import gives, parts
from psframework.collective.post import Post
from psframework.collective.ring import Ring
from psframework.collective.tuning import Algorithm, Table
from psframework.collective.work import Flat, Work
from psframework.errors import CollectiveMismatch, PeerLost, PsfError

THREADED_BYTES: Final = 4 << 20
"""Above so many bytes to combine at once, a thread does it; below, going there and back costs more."""

COPIED_BYTES: Final = 256 << 10
"""Up to so many bytes, an array is copied and sent, and nobody waits until it has arrived."""


class Network:
    """Implements Transport over a Post. Made on the loop, where all of it runs.

    Args:
        post: carries letters between the ranks.
        table: says which algorithm is fastest.
        channel: of its letters; another one for each transport that uses the same Post.
        group: the group's name, for messages.
    """

    lives_on = True

    def __init__(self, post: Post, table: Table, channel: str = "", group: str = "") -> None:
        self._post, self._table, self._channel, self._group = post, table, channel, group
        self._loop, self._home = asyncio.get_running_loop(), threading.get_ident()
        self._thread = ThreadPoolExecutor(1, f"psf-reduce-{group}")
        self._task: asyncio.Task[None] | None = None
        self._behind: set[asyncio.Task[None]] = set()  # sends that their operation did not wait for
        self._error: BaseException | None = None

    @property
    def name(self) -> str:
        """How large all-reduces go: "direct" or "ring"."""
        return str(self._table.large(self._post.size))

    def start(self, work: Work) -> None:
        """As `Transport.start`."""
        if threading.get_ident() == self._home:
            self._start(work)
        else:
            self._loop.call_soon_threadsafe(self._start, work)

    def abort(self, error: BaseException) -> None:
        """As `Transport.abort`."""
        self._loop.call_soon_threadsafe(self._abort, error)

    async def close(self) -> None:
        """As `Transport.close`. What others still need of this rank is sent first."""
        await asyncio.gather(*self._behind, return_exceptions=True)
        self._abort(PsfError(f"group {self._group!r} is closed"))
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)

    def _start(self, work: Work) -> None:
        self._task = self._loop.create_task(self._run(work))
        self._task.add_done_callback(lambda task: work.done(work, self._outcome(task)))

    def _abort(self, error: BaseException) -> None:
        self._error = self._error or error
        for task in (self._task, *self._behind):
            if task is not None:
                task.cancel()

    def _outcome(self, task: asyncio.Task[None]) -> BaseException | None:
        if task.cancelled():
            return self._error or PsfError(f"the loop of group {self._group!r} has ended")
        error = task.exception()
        if error is not None and self._error is not None:
            return self._error
        return error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error

    async def _run(self, work: Work) -> None:
        if self._error is not None:
            raise self._error
        algorithm = self._algorithm(work)
        if work.descriptor.operation is Operation.BARRIER or (
            algorithm is Algorithm.WHOLE and _nbytes(work) <= COPIED_BYTES
        ):
            await self._one_way(work)
            return
        async with asyncio.TaskGroup() as tasks:
            letters = Letters(self._post, self._channel, work, tasks.create_task)
            mismatch = await self._operate(letters, work, tasks, algorithm)
        if mismatch is not None:  # not raised inside: that would end sends, and others must learn of it too
            raise mismatch
        letters.check()

    async def _one_way(self, work: Work) -> None:
        """Each sends all it has to all; it is over when theirs have come, whether or not its own have.

        So it takes one way, and not there and back; what is sent is a copy, since the user's array changes.
        """
        letters = Letters(self._post, self._channel, work, self._send_behind)
        given = gives(work, letters.rank, letters.size, whole=True)
        if given:
            given = dict.fromkeys(given, next(iter(given.values())).copy())
        mismatch = self._compare(work, await letters.agree(given))
        if mismatch is not None:
            raise mismatch
        if given:
            await Direct(letters, work, self._combine, self._send_behind).exchange(given, copied=True)

    def _send_behind(self, send: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(send)
        self._behind.add(task)
        task.add_done_callback(self._sent_behind)
        return task

    def _sent_behind(self, task: asyncio.Task[None]) -> None:
        self._behind.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PeerLost):  # a loss is the group's to tell
            self._abort(error)

    async def _operate(
        self, letters: Letters, work: Work, tasks: asyncio.TaskGroup, algorithm: Algorithm
    ) -> CollectiveMismatch | None:
        rings, whole = algorithm is Algorithm.RING, algorithm is Algorithm.WHOLE
        given = {} if rings else gives(work, letters.rank, letters.size, whole=whole)
        mismatch = self._compare(work, await letters.agree(given))
        if mismatch is not None:
            return mismatch
        if rings:
            await Ring(letters, work, self._combine, tasks.create_task).run()
        elif whole:
            await Direct(letters, work, self._combine, tasks.create_task).exchange(given, copied=False)
        else:
            await Direct(letters, work, self._combine, tasks.create_task).run(given)
        return None

    def _compare(self, work: Work, found: Mapping[int, Descriptor]) -> CollectiveMismatch | None:
        """What differs; an open rank gets its array."""
        numbers, names = self._post.numbers, self._post.names
        said = {numbers[rank]: each for rank, each in found.items()}
        try:
            check_agreement(self._group, said, dict(zip(numbers, names, strict=True)))
        except CollectiveMismatch as mismatch:
            return mismatch
        if work.receive is None and work.allocate is not None:
            work.receive = work.allocate(next(each for each in found.values() if not each.open))
        return None

    def _algorithm(self, work: Work) -> Algorithm:
        return self._table.choose(work.descriptor.operation, _nbytes(work), self._post.size)

    async def _combine(self, op: ReduceOp, came: Sequence[Sequence[Flat]], size: int, out: Flat) -> None:
        if out.nbytes * len(came) < THREADED_BYTES:
            _combine_parts(op, came, size, out)
        else:
            await self._loop.run_in_executor(self._thread, _combine_parts, op, came, size, out)


def _nbytes(work: Work) -> int:
    return 0 if work.send is None else work.send.nbytes


def _combine_parts(op: ReduceOp, came: Sequence[Sequence[Flat]], size: int, out: Flat) -> None:
    for each, into in zip(zip(*came, strict=True), parts(out), strict=True):
        combine(op, each, size, into)
