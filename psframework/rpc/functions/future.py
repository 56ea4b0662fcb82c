"""`psf.Future`: the result of a remote call, which was sent already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Future(asyncio.Future[T]):
    """The result of a call that is under way. Await it, again and again, from as many tasks as you like.

        future = cluster.rpc_async("worker-1", add, args=(x, y))
        ...                                   # the call runs meanwhile
        total = await future

    It is an asyncio.Future, so `asyncio.gather`, `wait` and `as_completed` take it. It shields nothing:
    cancelling it, or a task that awaits it, cancels the remote work. `result()` and `exception()` are for
    futures that are `done()`.

    Args:
        on_cancel: ends the work.
    """

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._on_cancel: Callable[[], None] | None = on_cancel

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancels the remote work, and whoever awaits this; False if it is done already."""
        if not super().cancel(msg):
            return False
        on_cancel, self._on_cancel = self._on_cancel, None
        if on_cancel is not None:
            on_cancel()
        return True

    def set_result(self, result: T, /) -> None:
        """For whoever made the future."""
        self._on_cancel = None
        super().set_result(result)

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """For whoever made the future."""
        self._on_cancel = None
        super().set_exception(exception)
