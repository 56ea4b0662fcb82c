"""Where activations, gradients, inputs and targets wait for the action that takes them. On the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from psframework.errors import ContextClosed
from psframework.pipeline.plan import Key


class Mailbox:
    """What has come, and who waits for what has not. Each key is put once and taken once.

    What comes for a run that has ended is dropped; who wants something of it gets the error that ended it.
    """

    def __init__(self) -> None:
        self._letters: dict[Key, Any] = {}
        self._waiting: dict[Key, asyncio.Future[Any]] = {}
        self._ended: dict[int, BaseException] = {}
        self._floor = 0
        self._why: BaseException = ContextClosed("this run has ended")  # all up to the floor

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, key: Key, value: Any) -> None:
        """Something has come."""
        if self.ended(key.run) is not None:
            return
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(value)
        else:
            self._letters[key] = value

    async def take(self, key: Key) -> Any:
        """What came under a key; waits for it.

        Raises:
            BaseException: that which ended the run.
        """
        error = self.ended(key.run)
        if error is not None:
            raise error
        if key in self._letters:
            return self._letters.pop(key)
        waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            return await waiting
        finally:
            self._waiting.pop(key, None)

    def ended(self, run: int) -> BaseException | None:
        """What ended a run; None: it goes on, or is to come."""
        return self._why if run <= self._floor else self._ended.get(run)

    def end(self, run: int, error: BaseException) -> None:
        """A run is over here, if it was not before."""
        if self.ended(run) is None:
            self._ended[run] = error
            self._forget()

    def end_through(self, run: int, error: BaseException) -> None:
        """All runs up to this one are over."""
        if run > self._floor:
            self._floor, self._why = run, error
            self._ended = {each: why for each, why in self._ended.items() if each > run}
            self._forget()

    def _forget(self) -> None:
        """What is left of runs that are over goes, and who waits for more gets the error."""
        for key in [key for key in self._letters if self.ended(key.run) is not None]:
            del self._letters[key]
        for key, waiting in self._waiting.items():
            error = self.ended(key.run)
            if error is not None and not waiting.done():
                waiting.set_exception(error)
