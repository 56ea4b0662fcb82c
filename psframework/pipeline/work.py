"""What a rank does for its driver, as tasks that can be ended from elsewhere. On the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Work:
    """Tasks, each with somebody who waits for its result."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], BaseException | None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work. Cancelling this cancels the work.

        Raises:
            BaseException: the work's, or that with which it was ended.
        """
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        try:
            return await task
        except asyncio.CancelledError:
            error, current = self._tasks[task], asyncio.current_task()
            if error is None or (current is not None and current.cancelling()):
                raise
            raise error from None
        finally:
            del self._tasks[task]

    async def end(self, error: BaseException) -> None:
        """Ends all work; on return nothing of it goes on, and whoever waited for it gets the error."""
        tasks = list(self._tasks)
        for task in tasks:
            self._tasks[task] = error
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
