"""The call stream over a socket, in place of gRPC's: a Unix one on one host, one of TCP between hosts.

Through gRPC each message crosses a thread at either end, and wakes the event loop twice. Here the loop reads
and writes the socket itself, which takes a third of the time. The gRPC stream stays open beside it: it proved
who is at the other end, and tells when that is gone. What ends one of them ends both.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from psframework.errors import WireError
from psframework.rpc.session import frames
from psframework.wire.owned_socket import OwnedSocket

READ_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct("<I")


class Shortcut(OwnedSocket):
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
        super().__init__(sock)
        self._receive = receive
        self._ended = ended
        self._came = bytearray()
        self._taking: Iterator[None] | None = None
        self._leaving = memoryview(b"")
        self._sent: Callable[[None], None] | None = None

    def start(self) -> None:
        """Takes what comes, from now on."""
        if not self._closed:
            self._read_on()

    def send(self, message: bytes, sent: Callable[[None], None]) -> None:
        """Sends a message; one at a time. `sent(None)` is called when it has left, which may be at once."""
        data = _LENGTH.pack(len(message)) + message
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError as error:
            self._fail(error)
            return
        if count == len(data):
            sent(None)
            return
        self._leaving, self._sent = memoryview(data)[count:], sent
        self._wait_for_room(True)

    def drop(self) -> None:
        """Nobody waits any more for the message that leaves."""
        self._sent = None

    def close(self) -> None:
        """Nothing more comes or goes."""
        super().close()
        self._taking = None

    def _broke(self, error: BaseException) -> None:
        self._ended(error)

    def _writable(self) -> None:
        try:
            self._leaving = self._leaving[self._socket.send(self._leaving) :]
        except BlockingIOError:
            return
        if not self._leaving:
            self._wait_for_room(False)
            sent, self._sent = self._sent, None
            if sent is not None:
                sent(None)

    def _readable(self) -> None:
        if self._taking is not None:  # what came before goes first
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the other end closed the socket")
        self._came += data
        self._take()

    def _take(self) -> None:
        """Takes the messages that are whole, until one of them lets other work go first."""
        while not self._closed:
            if self._taking is None:
                message = self._next()
                if message is None:
                    return
                self._taking = iter(self._receive(message))
            for _ in self._taking:
                self._loop.call_soon(self._run, self._take)
                return
            self._taking = None

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
