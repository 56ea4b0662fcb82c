"""The call stream over a socket, in place of gRPC's: a Unix one on one host, one of TCP between hosts.

Through gRPC each message crosses a thread at either end, and wakes the event loop twice. Here the loop reads
and writes the socket itself, which takes a third of the time. The gRPC stream stays open beside it: it proved
who is at the other end, and tells when that is gone. What ends one of them ends both.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from typing import Final

from psframework.errors import WireError
from psframework.rpc.session import frames
from psframework.wire.sockets import Watch

READ_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct("<I")


class Shortcut:
    """Messages over one connected socket, each after its length.

    Args:
        sock: the socket; owned from here on.
        receive: takes each message; it yields where other work may go first.
        ended: told why nothing more will come or go, unless this was closed here.
    """

    def __init__(
        self,
        sock: socket.socket,
        receive: Callable[[bytes], Iterable[None]],
        ended: Callable[[BaseException], None],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._receive = receive
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._came = bytearray()
        self._taking: Iterator[None] | None = None
        self._leaving = memoryview(b"")
        self._sent: Callable[[BaseException | None], None] | None = None
        self._closed = False
        self._watch = Watch(sock, self._fail)

    def start(self) -> None:
        """Takes what comes, from now on."""
        if not self._closed:
            # In a context of its own: nothing of whoever opened the session, such as its gradient mode.
            Context().run(self._loop.add_reader, self._socket, self._readable)

    def send(self, message: bytes, sent: Callable[[BaseException | None], None]) -> None:
        """Sends a message; one at a time. `sent(None)` is called when it has left, which may be at once."""
        data = _LENGTH.pack(len(message)) + message
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError as error:
            sent(error)
            return
        if count == len(data):
            sent(None)
            return
        self._leaving, self._sent = memoryview(data)[count:], sent
        Context().run(self._loop.add_writer, self._socket, self._writable)

    def drop(self) -> None:
        """Nobody waits any more for the message that leaves."""
        self._sent = None

    def close(self) -> None:
        """Nothing more comes or goes."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._taking = None

    def _writable(self) -> None:
        try:
            self._leaving = self._leaving[self._socket.send(self._leaving) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._left(error)
            return
        if not self._leaving:
            self._left(None)

    def _left(self, error: BaseException | None) -> None:
        self._loop.remove_writer(self._socket)
        self._leaving = memoryview(b"")
        sent, self._sent = self._sent, None
        if sent is not None:
            sent(error)

    def _readable(self) -> None:
        if self._taking is not None:  # what came before goes first
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if not data:
            self._fail(ConnectionError("the other end closed the socket"))
            return
        self._came += data
        self._take()

    def _take(self) -> None:
        """Takes the messages that are whole, until one of them lets other work go first."""
        try:
            while not self._closed:
                if self._taking is None:
                    message = self._next()
                    if message is None:
                        return
                    self._taking = iter(self._receive(message))
                for _ in self._taking:
                    self._loop.call_soon(self._take)
                    return
                self._taking = None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._fail(error)

    def _next(self) -> bytes | None:
        came = self._came
        if len(came) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(came)
        if length > frames.MAX_MESSAGE:
            raise WireError(f"a message of {length} bytes; at most {frames.MAX_MESSAGE} may come at once")
        end = _LENGTH.size + length
        if len(came) < end:
            return None
        with memoryview(came) as view:
            message = bytes(view[_LENGTH.size : end])
        del came[:end]
        return message

    def _fail(self, error: BaseException) -> None:
        if not self._closed:
            self.close()
            self._ended(error)
