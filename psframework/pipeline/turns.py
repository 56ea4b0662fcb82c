"""Steps one at a time, inferences beside each other, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from psframework.errors import DeadlineExceeded
from psframework.rpc.deadline import Deadline


class Turns:
    """A lock for one writer or several readers; nobody overtakes, so nobody waits for ever."""

    def __init__(self) -> None:
        self._readers = 0
        self._writing = False
        self._line: deque[tuple[asyncio.Future[None], bool]] = deque()

    def alone(self, deadline: Deadline = Deadline.NEVER) -> AbstractAsyncContextManager[None]:
        """Nobody else is inside.

        Raises:
            DeadlineExceeded: those before it were not done in time.
        """
        return self._inside(True, deadline)

    def together(self, deadline: Deadline = Deadline.NEVER) -> AbstractAsyncContextManager[None]:
        """Nobody is alone inside.

        Raises:
            DeadlineExceeded: those before it were not done in time.
        """
        return self._inside(False, deadline)

    @asynccontextmanager
    async def _inside(self, alone: bool, deadline: Deadline) -> AsyncIterator[None]:
        await self._enter(alone, deadline)
        try:
            yield
        finally:
            self._leave(alone)

    async def _enter(self, alone: bool, deadline: Deadline) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((turn, alone))
        self._admit()
        try:
            async with asyncio.timeout(deadline.seconds()):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # admitted, and cancelled before it knew
                self._leave(alone)
            else:  # whoever stands behind it may be next
                self._admit()
            if isinstance(error, TimeoutError):
                text = "this pipeline was still at what it had been asked before"
                raise DeadlineExceeded(text) from None
            raise

    def _leave(self, alone: bool) -> None:
        if alone:
            self._writing = False
        else:
            self._readers -= 1
        self._admit()

    def _admit(self) -> None:
        while self._line:
            turn, alone = self._line[0]
            if not turn.cancelled():
                if self._writing or (alone and self._readers):
                    return
                self._writing = alone
                self._readers += not alone
                turn.set_result(None)
            self._line.popleft()
