"""A connected socket that the event loop reads and writes itself, and what ends it."""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context
from typing import Final

# The kernel alone gives up a path that swallows what is sent after a quarter of an hour.
STUCK_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 5.0
_TCP_INFO: Final = struct.Struct("=8x13I")  # Linux: struct tcp_info as far as tcpi_last_ack_recv
_UNACKNOWLEDGED, _SINCE_LAST_MS = 4, 12


class OwnedSocket(ABC):
    """A socket whose callbacks the loop calls, until it fails or is closed here.

    What they raise ends it, as does a path that swallows what is sent: `_broke` is told once, then it closes.

    Args:
        sock: owned from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._is_full = False
        self._watch = Watch(sock, self._fail)

    def close(self) -> None:
        """Nothing more comes or goes."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    @abstractmethod
    def _readable(self) -> None:
        """Something has come."""

    @abstractmethod
    def _writable(self) -> None:
        """There is room again, after `_wait_for_room`."""

    @abstractmethod
    def _broke(self, error: BaseException) -> None:
        """Why nothing more will come or go."""

    def _read_on(self) -> None:
        # In a context of its own: nothing of whoever opened the session, such as its gradient mode.
        Context().run(self._loop.add_reader, self._socket, self._run, self._readable)

    def _wait_for_room(self, is_full: bool) -> None:
        if is_full and not self._is_full:
            Context().run(self._loop.add_writer, self._socket, self._run, self._writable)
        elif self._is_full and not is_full:
            self._loop.remove_writer(self._socket)
        self._is_full = is_full

    def _run(self, step: Callable[[], None]) -> None:
        """Each callback of the loop: what it raises ends this socket, not the loop's turn."""
        try:
            step()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._closed:
            self._broke(error)
            self.close()


class Watch:
    """Notices a path that swallows what is sent.

    A peer that merely does not read still acknowledges, so it may take as long as it likes.

    Args:
        sock: a TCP socket; for others nothing is done.
        stuck: called, once, with what is wrong.
    """

    def __init__(self, sock: socket.socket, stuck: Callable[[BaseException], None]) -> None:
        self._socket = sock
        self._stuck = stuck
        self._timer: asyncio.TimerHandle | None = None
        if sock.family != getattr(socket, "AF_UNIX", None) and hasattr(socket, "TCP_INFO"):
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Looks no more; before the socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stuck = _ignore  # else each would refer to the other

    def _look(self) -> None:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        if is_stuck(info):
            self._timer = None
            self._stuck(ConnectionError(f"nothing that was sent has arrived for {STUCK_SECONDS:.0f} s"))
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)


def is_stuck(info: bytes) -> bool:
    """Whether Linux's `tcp_info` says that bytes are under way, and that no word of any has come for long."""
    fields = _TCP_INFO.unpack(info)
    return bool(fields[_UNACKNOWLEDGED] and fields[_SINCE_LAST_MS] > 1000 * STUCK_SECONDS)


def _ignore(_: BaseException) -> None:
    pass
