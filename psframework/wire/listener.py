"""Accepts connections of whoever comes, a bounded number at a time, each served by a task."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

log = logging.getLogger("psframework.wire")

MOST: Final = 64
"""Connections that are served at once; the others wait in the backlog, then outside."""

_PAUSE_SECONDS: Final = 0.1


class Listener:
    """Serves what connects to a socket that listens.

    Args:
        sock: non-blocking; owned from here on.
        serve: serves one connection, which is closed when that ends, unless it was detached.
        name: of the tasks.
    """

    def __init__(
        self, sock: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]], name: str
    ) -> None:
        self._socket = sock
        self._serve = serve
        self._name = name
        self._served: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._go_on()

    def stop(self) -> None:
        """Accepts nothing more, at once, and begins to end what is being served."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._pause is not None:
            self._pause.cancel()
        for task in self._served:
            task.cancel()

    async def close(self) -> None:
        """As `stop`; returns when nothing is served any more."""
        self.stop()
        await asyncio.gather(*self._served, return_exceptions=True)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors: others will give some back
            log.warning("can't accept a connection now: %s", error)
            self._loop.remove_reader(self._socket)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._go_on)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection), name=self._name)
        self._served.add(task)
        # The callback closes, not `serve`: a task cancelled before its first step never runs.
        task.add_done_callback(partial(self._done, connection))
        if len(self._served) == MOST:
            self._loop.remove_reader(self._socket)

    def _done(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()
        self._served.discard(task)
        if len(self._served) == MOST - 1 and self._socket.fileno() >= 0:
            self._go_on()
