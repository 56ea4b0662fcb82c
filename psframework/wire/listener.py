"""Accepts connections of whoever comes, a bounded number at a time, each served by a task."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from psframework.wire import handover

log = logging.getLogger("psframework.wire")

MOST: Final = 64
"""Connections that are served at once; the others wait in the backlog, then outside."""


class Listener:
    """Serves what connects to a socket that listens.

    Args:
        sock: non-blocking; owned from here on.
        serve: serves one connection, which is closed when that ends, unless it was detached.
        name: of the task.
    """

    def __init__(
        self, sock: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]], name: str
    ) -> None:
        self._socket = sock
        self._serve = serve
        self._served: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name=name)

    async def close(self) -> None:
        """Accepts nothing more, and ends what is being served."""
        tasks = [*self._served, self._accepting]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._socket.close()

    async def _accept(self) -> None:
        while True:
            if len(self._served) >= MOST:
                await asyncio.wait(self._served, return_when=asyncio.FIRST_COMPLETED)
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                await handover.wait_for(self._socket)
                continue
            except OSError as error:  # out of descriptors: others will give some back
                log.warning("can't accept a connection now: %s", error)
                await asyncio.sleep(0.1)
                continue
            connection.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._served.add(task)
            # The callback closes, not `serve`: a task cancelled before its first step never runs.
            task.add_done_callback(partial(self._done, connection))

    def _done(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()
        self._served.discard(task)
