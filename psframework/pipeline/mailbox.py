"""Where activations, gradients, inputs and targets wait for the action that takes them. On the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from psframework.pipeline.plan import Key


class Mailbox:
    """What has come, and who waits for what has not. Each key is put once and taken once.

    What comes for a run that has ended is dropped.
    """

    def __init__(self) -> None:
        self._letters: dict[Key, Any] = {}
        self._waiting: dict[Key, asyncio.Future[Any]] = {}
        self._ended: set[int] = set()
        self._floor = 0

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, key: Key, value: Any) -> None:
        """Something has come."""
        if key.run <= self._floor or key.run in self._ended:
            return
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(value)
        else:
            self._letters[key] = value

    async def take(self, key: Key) -> Any:
        """What came under a key; waits for it. The task that waits is ended by `end`, or cancelled."""
        if key in self._letters:
            return self._letters.pop(key)
        waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            return await waiting
        finally:
            self._waiting.pop(key, None)

    def end(self, run: int) -> None:
        """A run is over here: what is left of it goes, and what still comes is dropped."""
        self._ended.add(run)
        self._forget(lambda each: each == run)

    def end_through(self, run: int, error: BaseException) -> None:
        """All runs up to this one are over; who waits for something of theirs gets the error."""
        self._floor = max(self._floor, run)
        self._ended = {each for each in self._ended if each > self._floor}
        for key, waiting in self._waiting.items():
            if key.run <= self._floor and not waiting.done():
                waiting.set_exception(error)
        self._forget(lambda each: each <= self._floor)

    def _forget(self, over: Any) -> None:
        for key in [key for key in self._letters if over(key.run)]:
            del self._letters[key]
