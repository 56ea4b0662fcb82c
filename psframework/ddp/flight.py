"""The collectives of one backward that are under way: begun in any thread, over when all have landed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol

from psframework.collective.descriptor import ANY, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.queue import again
from psframework.collective.work import Flat
from psframework.errors import CollectiveMismatch


class Begins(Protocol):
    """As much of a `psf.ProcessGroup` as a flight uses."""

    @property
    def rank(self) -> int: ...
    @property
    def members(self) -> Sequence[str]: ...
    def begin(
        self,
        operation: Operation,
        send: Flat | None,
        receive: Flat | None,
        *,
        on_done: Callable[[BaseException | None], None],
        op: ReduceOp | None = None,
        root: int = ANY,
        unless: Callable[[], BaseException | None] | None = None,
    ) -> None: ...
    def decline(self, why: str, unless: Callable[[], BaseException | None] | None = None) -> None: ...


class Flight:
    """Counts what is under way. After the first error nothing more is begun, so that ranks stay in step.

    Args:
        group: where collectives are begun.
        on_over: called once, with the first error or None, when the backward has ended and all collectives
            have landed; from any thread.

    Attributes:
        over: whether `on_over` was called.
        error: the first error.
    """

    def __init__(self, group: Begins, on_over: Callable[[BaseException | None], None]) -> None:
        self._group = group
        self._on_over: Callable[[BaseException | None], None] | None = on_over
        self._loop = asyncio.get_running_loop()
        self.over = False
        self._waiter: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self._lock = Lock()
        self._open = self._held = 1  # the backward itself
        self._shared: BaseException | None = None  # the first error that a collective ended with
        self._why = ""  # what the other ranks are to be told
        self._claimed = False

    def claim(self) -> bool:
        """True for the first who asks: the backward itself, or whoever gave up before it began."""
        with self._lock:
            first, self._claimed = not self._claimed, True
        return first

    def begin(
        self,
        operation: Operation,
        send: Flat | None,
        receive: Flat | None,
        op: ReduceOp | None = None,
        root: int = ANY,
        *,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Begins a collective, unless something failed.

        Args:
            operation: which; as `ProcessGroup.begin`.
            send: as there.
            receive: as there.
            op: as there.
            root: as there.
            then: called when it has ended well, in any thread.
        """
        with self._lock:
            if self.error is not None:
                return
            self._open += 1

        def done(error: BaseException | None) -> None:
            try:
                if error is None and then is not None:
                    then()
            finally:
                self._end(error)

        self._group.begin(
            operation, send, receive, on_done=done, op=op, root=root, unless=lambda: self._shared
        )

    def hold(self) -> None:
        """One more that has to `land`, since it begins collectives too."""
        with self._lock:
            self._open += 1
            self._held += 1

    def refuse(self, why: str) -> None:
        """This rank can't go on with the backward: on every rank it ends with CollectiveMismatch."""
        rank = self._group.rank
        self.fail(CollectiveMismatch(f"rank {rank} ({self._group.members[rank]}): {why}"), why)

    def fail(self, error: BaseException, why: str = "") -> None:
        """An error ends the backward; the others are told once nothing more of it begins here.

        A CollectiveMismatch (without `why`) they have as well. So they have what ended the group, where
        nothing can be told any more; but PeerLost, for one, may also come from a hook that asked a server.
        """
        with self._lock:
            if not why and isinstance(error, CollectiveMismatch):
                self._shared = self._shared or error
            elif self.error is None:
                self._why = why or f"a backward failed with {type(error).__name__}: {error}"
            self.error = self.error or error

    def taken(self) -> BaseException | None:
        """The first error, to be raised; nothing here keeps it, nor the frames that it goes through."""
        error, shared = self.error, self._shared
        self.error = self._shared = None
        return again(error) if error is not None and error is shared else error  # the group may keep it

    def land(self) -> None:
        """The backward itself, or who held it, begins no more collectives."""
        with self._lock:
            self._held -= 1
            why = "" if self._held else self._why
        if why:  # not before: a collective that came after this one would be out of step
            self._group.decline(why, lambda: self._shared)
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        """A collective, or one of those that begin them, has ended."""
        with self._lock:
            self._shared = self._shared or error
            self.error = self.error or error
            self._open -= 1
            last = not self._open
        if last:
            on_over, self._on_over = self._on_over, None  # it refers to whoever keeps this flight
            assert on_over is not None
            on_over(self.error)
            with self._lock:
                self.over, waiter = True, self._waiter
            if waiter is not None:
                try:
                    self._loop.call_soon_threadsafe(waiter.set_result, None)
                except RuntimeError:
                    pass  # that loop is closed: nobody waits any more

    async def wait(self) -> None:
        """Until it is over. (The loop is woken only if somebody waits: that costs more than all the rest.)"""
        with self._lock:
            if self.over:
                return
            self._waiter = self._waiter or self._loop.create_future()
        await asyncio.shield(self._waiter)

    async def ended(self) -> None:
        """Until it is over; raises its first error."""
        await self.wait()
        error = self.taken()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
