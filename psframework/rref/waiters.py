"""Futures of those who wait for something to happen to a reference or a value."""

from __future__ import annotations

import asyncio

from psframework.errors import DeadlineExceeded, PsfError
from psframework.rpc.deadline import Deadline
from psframework.rpc.status import detail_to_error, error_to_detail


def fresh(error: BaseException) -> PsfError:
    """A copy of an error that is kept: raised itself, its traceback would keep whoever met it alive."""
    return detail_to_error(error_to_detail(error))


class Waiters:
    """Who waits for what; `what` is any key."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[object, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiters.values()))

    def add(self, what: object) -> asyncio.Future[None]:
        """One more who waits."""
        waiter = self._future()
        self._waiters.setdefault(what, []).append(waiter)
        return waiter

    def settled(self, error: PsfError | None) -> asyncio.Future[None]:
        """For one who needs not wait."""
        future = self._future()
        _settle(future, error)
        return future

    def wake(self, what: object, error: PsfError | None = None) -> None:
        """It has happened, or never will."""
        for waiter in self._waiters.pop(what, ()):
            if not waiter.done():
                _settle(waiter, error)

    def end(self, error: PsfError | None) -> None:
        """Nothing will happen any more."""
        for what in list(self._waiters):
            self.wake(what, error)

    async def wait(self, what: object, deadline: Deadline, text: str) -> None:
        """Waits until it happens; DeadlineExceeded with `text` if it does not in time."""
        waiter = self.add(what)
        try:
            async with asyncio.timeout(deadline.seconds()):
                await waiter
        except TimeoutError:
            raise DeadlineExceeded(text) from None
        finally:
            waiters = self._waiters.get(what, [])
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[what]

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_looked_at)
        return future


def _settle(future: asyncio.Future[None], error: PsfError | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(fresh(error))


def _looked_at(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
