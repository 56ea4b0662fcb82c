"""The striped lane of one session: payloads in chunks over several streams or sockets, whichever has room."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import grpc

from psframework.errors import WireError
from psframework.proto.v1.call_pb2 import Chunk as ChunkMessage
from psframework.proto.v1.call_pb2 import TransferState
from psframework.rpc.session.socket_stripe import SocketStripe
from psframework.rpc.session.stream import ByteStream, Duplex
from psframework.rpc.session.transfer import Feed, Key, Receiving, Sending, read_states
from psframework.wire import codec
from psframework.wire.chunks import CHUNK_BYTES, Assembly
from psframework.wire.memory import Buffer, BufferPool

BACKLOG = 8 * CHUNK_BYTES
"""Ready bytes of a payload made part by part, above which the maker of parts waits."""

FRAME_SECONDS = 10.0
"""How long a chunk may be ahead of the frame that announces its payload."""

MOST_SOCKETS = 64
"""Stripes over sockets that one connection may have."""

T = TypeVar("T")


class Bulk:
    """Payloads of one session on the striped lane.

    Where there are sockets, chunks leave through them alone; streams of gRPC still take what comes.

    Args:
        may_come: whether a payload that nobody announced yet may still be announced.
        max_bytes: largest payload accepted.
        pool: where receive buffers come from.
    """

    def __init__(self, may_come: Callable[[Key], bool], max_bytes: int, pool: BufferPool) -> None:
        self.may_come = may_come
        self._max_bytes = max_bytes
        self._pool = pool
        self._sending: dict[Key, Sending] = {}
        self._turns: deque[Sending] = deque()  # those with chunks, in turn
        self._receiving: dict[Key, Receiving] = {}
        self._early: dict[Key, asyncio.Event] = {}
        self._stripes: list[Stripe] = []
        self._sockets: list[SocketStripe] = []
        self._writers: list[asyncio.Future[None]] = []
        self._makers: list[asyncio.Future[None]] = []
        self._open_stripes: Callable[[], None] | None = None
        self._asked = False

    @property
    def is_idle(self) -> bool:
        """Whether no payload is on its way or kept."""
        return not self._sending and not self._receiving

    # Sending

    def send(self, key: Key, number: int, sizes: Sequence[int], parts: Sequence[Buffer] | None) -> Sending:
        """Starts a payload that frame `number` announced; parts of None come later, by `add`."""
        sending = self._sending[key] = Sending(key, sizes, parts)
        sending.number = number
        self._schedule(sending)
        return sending

    async def add(self, sending: Sending, index: int, part: Buffer) -> None:
        """Gives one part; waits while many bytes are ready and not sent."""
        sending.add(index, part)
        if sending.backlog and sending not in self._turns:
            self._schedule(sending)
        while sending.backlog > BACKLOG and sending.key in self._sending:
            waiter = asyncio.get_running_loop().create_future()
            self._makers.append(waiter)
            await waiter

    def drop(self, key: Key) -> None:
        """The other end needs the payload no more."""
        sending = self._sending.pop(key, None)
        if sending is not None and sending in self._turns:
            self._turns.remove(sending)
        _wake(self._makers)

    def next_message(self) -> bytes | None:
        """The next chunk for a stream of gRPC, encoded; None if there is none, or sockets take it."""
        return self.next_chunk(Sending.next_message) if not self._sockets else None

    def next_chunk(self, take: Callable[[Sending], T]) -> T | None:
        """`take` of whichever payload has its turn; None if no chunk is to be sent."""
        if not self._turns:
            return None
        sending = self._turns.popleft()
        message = take(sending)
        if sending.has_chunks:
            self._turns.append(sending)
        if sending.backlog <= BACKLOG:
            _wake(self._makers)
        return message

    def _schedule(self, sending: Sending) -> None:
        if sending.has_chunks:
            self._turns.append(sending)
            _wake(self._writers)
            self.open_stripes()

    def open_stripes(self) -> None:
        """Has the streams opened, once a connection."""
        if not self._asked and self._open_stripes is not None:
            self._asked = True
            self._open_stripes()

    # Receiving

    def expect(self, key: Key, sizes: Sequence[int], feed: Feed, done: Callable[[], None]) -> None:
        """A frame has announced a payload. WireError if it is too large."""
        assembly = Assembly(sizes, max_bytes=self._max_bytes, allocate=self._pool.take, adopt=True)
        receiving = self._receiving[key] = Receiving(assembly, feed, done)
        early = self._early.pop(key, None)
        if early is not None:
            early.set()
        receiving.start()

    def forget(self, key: Key) -> None:
        """Nobody here needs the payload any more; chunks still on their way are dropped."""
        self._receiving.pop(key, None)
        early = self._early.pop(key, None)
        if early is not None:
            early.set()

    async def accept(self, message: bytes) -> None:
        """Takes one chunk. WireError if it can't be right."""
        chunk, data = codec.decode(message, ChunkMessage, max_header=256)
        key = (chunk.call, chunk.reply)
        receiving = self._receiving.get(key) or await self.announced(key)
        if receiving is None:
            return
        if receiving.accept(chunk.part, chunk.offset, data):
            self.is_complete(key)

    def receiving(self, key: Key) -> Receiving | None:
        """A payload that is arriving, if a frame has announced it."""
        return self._receiving.get(key)

    def is_complete(self, key: Key) -> None:
        """The last chunk of a payload has come."""
        self._receiving.pop(key, None)

    def take(self, nbytes: int) -> memoryview:
        """Memory for what can't be received in its place."""
        return self._pool.take(nbytes)

    async def announced(self, key: Key) -> Receiving | None:
        """Waits for the frame that announces a payload; None if it is not wanted any more.

        Raises:
            WireError: none came.
        """
        if key in self._receiving or not self.may_come(key):
            return self._receiving.get(key)
        event = self._early.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(FRAME_SECONDS):
                await event.wait()
        except TimeoutError:
            # After a pause of the loop both are due at once: the frame that was there all along, and the end.
            if not event.is_set():
                raise WireError(f"chunks of a payload that no frame announced: {key}") from None
        return self._receiving.get(key)

    # Connections

    def attach(self, open_stripes: Callable[[], None]) -> None:
        """A connection begins; `open_stripes` is called when the first chunk waits.

        A stripe of an earlier connection may have begun after that one ended: it must take no chunk of this.
        """
        self.detach()
        self._open_stripes = open_stripes
        self._asked = False
        if self._turns:
            self.open_stripes()

    def detach(self) -> None:
        """The connection has ended, and its stripes with it."""
        self._open_stripes = None
        stripes, self._stripes = self._stripes, []
        sockets, self._sockets = self._sockets, []
        for stripe in stripes:
            stripe.close()
        for each in sockets:
            each.close()
        _wake(self._writers)  # they are not to be kept for chunks that others will write

    def states(self) -> list[TransferState]:
        """What has not arrived yet, for the other end."""
        return [receiving.state(key) for key, receiving in self._receiving.items()]

    def resume(self, states: Iterable[TransferState], received: int) -> None:
        """Queues again what the other end misses; it has all frames up to `received`."""
        missing = read_states(states)
        self._turns.clear()
        for key, sending in self._sending.items():
            if key in missing:
                sending.restart(missing[key])
            elif sending.number > received:
                sending.restart()
            else:  # it arrived whole, or is not wanted
                sending.restart(())
            if sending.has_chunks:
                self._turns.append(sending)

    async def run_stripe(self, stream: ByteStream) -> BaseException | None:
        """Moves chunks both ways over one stream until it ends; returns why."""
        stripe = Stripe(stream, self)
        self._stripes.append(stripe)
        try:
            return await stripe.pump()
        finally:
            if stripe in self._stripes:
                self._stripes.remove(stripe)

    async def run_socket(self, sock: socket.socket) -> BaseException | None:
        """The same over a socket, which is taken over; it ends at once if there are too many."""
        if len(self._sockets) >= MOST_SOCKETS:
            sock.close()
            return WireError(f"more than {MOST_SOCKETS} sockets for stripes")
        stripe = SocketStripe(sock, self)
        self._sockets.append(stripe)
        try:
            return await stripe.pump()
        finally:
            if stripe in self._sockets:
                self._sockets.remove(stripe)

    def close(self) -> None:
        """The peer is lost."""
        self.detach()
        self._sending.clear()
        self._turns.clear()
        self._receiving.clear()
        for event in self._early.values():
            event.set()
        _wake(self._makers)

    async def wait_for_chunks(self) -> None:
        """Returns when `next_message` may have something."""
        await self._waiter()

    def when_chunks(self, callback: Callable[[], None]) -> None:
        """Calls `callback`, once, when `next_chunk` may have something."""
        self._waiter().add_done_callback(lambda _: callback())

    def _waiter(self) -> asyncio.Future[None]:
        waiter = asyncio.get_running_loop().create_future()
        self._writers.append(waiter)
        return waiter


class Stripe(Duplex):
    """One stream of the striped lane."""

    def __init__(self, stream: ByteStream, bulk: Bulk) -> None:
        super().__init__("psf-stripe")
        self._stream = stream
        self._bulk = bulk

    async def _read(self) -> None:
        read, accept = self._stream.read, self._bulk.accept
        while (message := await read()) is not grpc.aio.EOF:
            await accept(message)

    async def _write(self) -> None:
        write, bulk = self._stream.write, self._bulk
        while True:
            message = bulk.next_message()
            if message is None:
                await bulk.wait_for_chunks()
            else:
                await write(message)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    woken = waiters[:]
    waiters.clear()
    for waiter in woken:
        if not waiter.done():
            waiter.set_result(None)
