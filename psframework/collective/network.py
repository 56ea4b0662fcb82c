"""The transport of ranks that only share a network: letters between all of them, or around a ring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from psframework.collective.algorithms import combine
from psframework.collective.descriptor import Operation, check_agreement
from psframework.collective.direct import Direct
from psframework.collective.letters import Letters
from psframework.collective.ops import ReduceOp
from psframework.collective.plan import gives, parts
from psframework.collective.post import Post
from psframework.collective.ring import Ring
from psframework.collective.tuning import Algorithm, Table
from psframework.collective.work import Flat, Work
from psframework.errors import CollectiveMismatch, PsfError

THREADED_BYTES: Final = 4 << 20
"""Above so many bytes to combine at once, a thread does it; below, going there and back costs more."""


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
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, f"psf-reduce-{group}")
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    @property
    def name(self) -> str:
        """How large all-reduces go: "direct" or "ring"."""
        return str(self._table.large(self._post.size))

    def start(self, work: Work) -> None:
        """As `Transport.start`."""
        self._loop.call_soon_threadsafe(self._start, work)

    def abort(self, error: BaseException) -> None:
        """As `Transport.abort`."""
        self._loop.call_soon_threadsafe(self._abort, error)

    async def close(self) -> None:
        """As `Transport.close`."""
        self._abort(PsfError(f"group {self._group!r} is closed"))
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)

    def _start(self, work: Work) -> None:
        self._task = self._loop.create_task(self._run(work))
        self._task.add_done_callback(lambda task: work.done(work, self._outcome(task)))

    def _abort(self, error: BaseException) -> None:
        self._error = self._error or error
        if self._task is not None:
            self._task.cancel()

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
        async with asyncio.TaskGroup() as tasks:
            letters = Letters(self._post, self._channel, work, tasks)
            mismatch = await self._operate(letters, work, tasks)
        if mismatch is not None:
            raise mismatch
        letters.check()

    async def _operate(
        self, letters: Letters, work: Work, tasks: asyncio.TaskGroup
    ) -> CollectiveMismatch | None:
        """A mismatch is returned, not raised: that would end sends, and others must learn of it too."""
        algorithm = self._algorithm(work)
        whole, rings = algorithm is Algorithm.WHOLE, algorithm is Algorithm.RING
        given = {} if rings else gives(work, letters.rank, letters.size, whole=whole)
        if whole and work.send is work.receive:  # which is written to while letters are on their way
            given = dict.fromkeys(given, next(iter(given.values())).copy())
        found = await letters.agree(given)
        try:
            check_agreement(self._group, found, dict(enumerate(self._post.names)))
        except CollectiveMismatch as mismatch:
            return mismatch
        if work.receive is None and work.allocate is not None:
            work.receive = work.allocate(next(each for each in found.values() if not each.open))
        if rings:
            await Ring(letters, work, self._combine, tasks).run()
        elif work.descriptor.operation is not Operation.BARRIER:
            await Direct(letters, work, self._combine, tasks).run(given, whole=whole)
        return None

    def _algorithm(self, work: Work) -> Algorithm:
        nbytes = 0 if work.send is None else work.send.nbytes
        return self._table.choose(work.descriptor.operation, nbytes, self._post.size)

    async def _combine(self, op: ReduceOp, came: Sequence[Sequence[Flat]], size: int, out: Flat) -> None:
        if out.nbytes * len(came) < THREADED_BYTES:
            _combine_parts(op, came, size, out)
        else:
            await self._loop.run_in_executor(self._thread, _combine_parts, op, came, size, out)


def _combine_parts(op: ReduceOp, came: Sequence[Sequence[Flat]], size: int, out: Flat) -> None:
    for each, into in zip(zip(*came, strict=True), parts(out), strict=True):
        combine(op, each, size, into)
