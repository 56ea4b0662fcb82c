"""Something changed: wakes everybody who waits, and remembers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from psframework.errors import DeadlineExceeded
from psframework.rpc.deadline import Deadline


class Signal:
    """Waiters look at the state, then wait for the next change; there is no await between the two."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wakes everybody who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Waits for the next `notify`."""
        await self._event.wait()

    async def until(self, condition: Callable[[], bool], deadline: Deadline, what: str) -> None:
        """Waits until `condition()` holds, looking again after each change.

        Raises:
            DeadlineExceeded: naming `what`.
        """
        while not condition():
            if deadline.expired:
                raise DeadlineExceeded(f"waited in vain for {what}")
            try:
                async with asyncio.timeout(deadline.seconds()):
                    await self.wait()
            except TimeoutError:
                continue  # the condition may hold by now
