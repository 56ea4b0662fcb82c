"""A stripe over a socket of its own: chunks leave from where they lie, and are received where they belong.

No gRPC, no copy of ours, no task: the event loop calls when there is room, or when something has come. Each
chunk goes after a head of fixed size. A chunk that is ahead of the frame that announces its payload stops
its socket until that has come.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Final

from psframework.errors import WireError
from psframework.rpc.session.transfer import Key, Receiving, Sending
from psframework.wire.chunks import CHUNK_BYTES, Chunk
from psframework.wire.memory import Buffer
from psframework.wire.owned_socket import OwnedSocket

if TYPE_CHECKING:
    from psframework.rpc.session.bulk import Bulk

_HEAD: Final = struct.Struct("<QQII?3x")  # call, offset, part, bytes, whether of a reply
TURN_BYTES: Final = CHUNK_BYTES
"""Moved at once; then other work of the loop has its turn."""

_MANY_PIECES: Final = 64


class SocketStripe(OwnedSocket):
    """Chunks both ways over one connected socket.

    Args:
        sock: owned from here on.
        bulk: the session's payloads.
    """

    def __init__(self, sock: socket.socket, bulk: Bulk) -> None:
        super().__init__(sock)
        self._bulk = bulk
        self._ended: asyncio.Future[None] | None = None  # while it is pumped
        # What leaves: the buffers of a chunk.
        self._leaving: list[Buffer] = []
        # What comes: a head, then a chunk.
        self._head = bytearray(_HEAD.size)
        self._room = memoryview(self._head)  # what is to be filled next
        self._arriving: _Arriving | None = None
        self._announced: asyncio.Task[None] | None = None

    async def pump(self) -> BaseException | None:
        """Moves chunks until the socket ends; returns why (None: it was closed here)."""
        if self._closed:
            return None
        self._ended = self._loop.create_future()
        try:
            self._read_on()
            Context().run(self._run, self._writable)  # its own: nothing of whoever opened the session
            await self._ended
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return error
        finally:
            self.close()
            self._ended = None  # an error of it refers to this
        return None

    def close(self) -> None:
        """Nothing more comes or goes; `pump` returns soon after."""
        super().close()
        if self._announced is not None:
            self._announced.cancel()
        if self._arriving is not None:
            self._arriving.give_up()
            self._arriving = None
        self._leaving = []
        self._room = memoryview(b"")
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _broke(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    # Out

    def _writable(self) -> None:
        """Writes until the socket is full, or this turn has had its share."""
        left = TURN_BYTES
        try:
            while not self._closed:
                if not self._leaving and not self._next():
                    self._wait_for_room(False)
                    self._bulk.when_chunks(self._fill_again)
                    return
                if left <= 0:
                    break
                count = self._socket.sendmsg(self._leaving)
                left -= count
                self._leaving = _rest(self._leaving, count)
        except BlockingIOError:
            self._wait_for_room(True)
        else:
            if not self._is_full and not self._closed:
                self._loop.call_soon(self._run, self._writable)

    def _fill_again(self) -> None:
        if not self._closed and not self._is_full:
            self._run(self._writable)

    def _next(self) -> bool:
        found = self._bulk.next_chunk(Sending.next_pieces)
        if found is None:
            return False
        (call, reply), chunk, pieces = found
        self._leaving = [_HEAD.pack(call, chunk.offset, chunk.part, chunk.nbytes, reply)]
        self._leaving += pieces if len(pieces) <= _MANY_PIECES else [b"".join(pieces)]
        return True

    # In

    def _readable(self) -> None:
        left = TURN_BYTES
        try:
            while not self._closed and self._announced is None:
                if left <= 0:
                    if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                        self._loop.call_soon(
                            self._run, self._readable
                        )  # the selector knows nothing of these bytes
                    return
                count = self._socket.recv_into(self._room)
                if not count:
                    raise ConnectionError("the other end closed the socket")
                left -= count
                self._room = self._room[count:]
                if not self._room:
                    self._filled()
        except BlockingIOError:
            return

    def _filled(self) -> None:
        """The head has come, or the chunk."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            arriving.landed()
            self._room = memoryview(self._head)
            return
        call, offset, part, nbytes, reply = _HEAD.unpack(self._head)
        if not 1 <= nbytes <= CHUNK_BYTES:
            raise WireError(f"a chunk of {nbytes} bytes; at most {CHUNK_BYTES} may come at once")
        key, chunk = (call, reply), Chunk(part, offset, nbytes)
        receiving = self._bulk.receiving(key)
        if receiving is None and self._bulk.may_come(key):
            self._loop.remove_reader(self._socket)
            self._announced = self._loop.create_task(self._wait_for_frame(key, chunk))
            return
        self._expect(key, chunk, receiving)

    async def _wait_for_frame(self, key: Key, chunk: Chunk) -> None:
        try:
            receiving = await self._bulk.announced(key)
            self._announced = None
            if not self._closed:
                self._expect(key, chunk, receiving)
                self._read_on()
                self._readable()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._announced = None
            self._fail(error)

    def _expect(self, key: Key, chunk: Chunk, receiving: Receiving | None) -> None:
        self._arriving = _Arriving(self._bulk, key, chunk, receiving)
        self._room = self._arriving.room


class _Arriving:
    """A chunk that is being received: in its place in the payload, or beside it where that can't be."""

    def __init__(self, bulk: Bulk, key: Key, chunk: Chunk, receiving: Receiving | None) -> None:
        self._bulk = bulk
        self._key = key
        self._chunk = chunk
        self._receiving = receiving
        place = receiving.place(chunk) if receiving is not None else None
        self._in_place = place is not None
        self.room = place if place is not None else bulk.take(chunk.nbytes)
        self._data = self.room

    def landed(self) -> None:
        """All bytes are here."""
        receiving = self._receiving
        if receiving is None or self._bulk.receiving(self._key) is not receiving:  # nobody wants it any more
            return
        if self._in_place:
            complete = receiving.landed(self._chunk)
        else:
            complete = receiving.accept(self._chunk.part, self._chunk.offset, self._data)
        if complete:
            self._bulk.is_complete(self._key)

    def give_up(self) -> None:
        """The rest will not come this way."""
        if self._in_place and self._receiving is not None:
            self._receiving.give_up(self._chunk)


def _rest(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """What is left of the buffers after `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []
