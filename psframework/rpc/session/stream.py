"""The pumps of one connection, and the port through which everything of a session leaves.

A Port outlives connections; a Link is one connection's control stream. While a write is under way, frames
pile up in the session, and the next write takes all of them in one message: that is all of coalescing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol

import grpc

from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.gate import Gate
from psframework.rpc.session.session import Session
from psframework.rpc.session.shortcut import Shortcut
from psframework.wire.lanes import Lane, LaneStats

EARLY = 32
"""Frames of one turn after which a message leaves at once: the other end works while this one makes more.

A message with more is taken so many at a time, and what they begin runs before the next: its replies leave
while the rest is taken.
"""

SHORTCUT_SECONDS = 5.0
"""How long the other end's first message on a socket may be ahead of the socket."""

REPORT_SECONDS = 0.05
"""How long an acknowledgement may wait for a frame to ride on."""


class ByteStream(Protocol):
    """What a client's call and a server's context have in common (both of grpc.aio)."""

    async def read(self) -> Any: ...
    def write(self, message: bytes) -> Coroutine[Any, Any, None]: ...


class Port:
    """The way out of a session: numbers frames, keeps them, hands them to the link of the moment.

    Args:
        session: the pure state.

    Attributes:
        agreed: lanes that both ends offered, so the other end may use them.
        lanes: those to use from here; shared memory only once it was proved.
        stats: payload traffic by lane.
        alone: whether the last message that came had one frame in it, and nothing has left since. Calls then
            seem to be made one by one, so what follows need not wait for company.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.agreed: frozenset[Lane] = frozenset({Lane.INLINE})
        self.lanes = self.agreed
        self.stats = LaneStats()
        self.alone = False
        self._link: Link | None = None
        self.requests = Gate(session.requests)
        self.replies = Gate(session.replies)

    def attach(self, link: Link | None) -> None:
        """Frames leave through `link` from now on; None while there is no connection."""
        self._link = link

    @property
    def link(self) -> Link | None:
        """The connection of the moment."""
        return self._link

    def post(self, frame: Frame) -> int:
        """Queues a frame; returns its number. Never waits: callers were admitted by a gate.

        It leaves in the next turn of the loop, with all that comes till then; at once if it may stay alone.
        """
        number = self.session.push(frames.encode_frame(frame))
        if self._link is not None:
            self._link.wake(now=self.alone or self.session.unsent == EARLY)
        return number

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits for a window."""
        return self.requests.is_waiting or self.replies.is_waiting


class Duplex(ABC):
    """Two pumps over one stream, which end together.

    Args:
        name: of their tasks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pumps: tuple[asyncio.Task[None], ...] = ()
        self._closed = False

    async def pump(self) -> BaseException | None:
        """Moves data both ways until the stream ends; returns why (None: in order).

        Raises:
            CancelledError: the task was cancelled; the pumps are gone by then.
        """
        self._pumps = (
            asyncio.create_task(self._read(), name=f"{self._name}-read"),
            asyncio.create_task(self._write(), name=f"{self._name}-write"),
        )
        if self._closed:
            self.close()
        try:
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            results = await asyncio.gather(*self._pumps, return_exceptions=True)
            self._pumps = ()  # an error of theirs refers to this
        return next((r for r in results if r and not isinstance(r, asyncio.CancelledError)), None)

    def close(self) -> None:
        """Ends the pumps; `pump` returns soon after."""
        self._closed = True
        for task in self._pumps:
            task.cancel()

    @abstractmethod
    async def _read(self) -> None: ...

    @abstractmethod
    async def _write(self) -> None: ...


class Link(Duplex):
    """One connection of a session.

    Args:
        stream: the open gRPC stream, handshake done.
        port: where outgoing frames come from.
        receive: takes each message; it yields where other work may go first.
        number: of the connection, in its session.
    """

    def __init__(
        self, stream: ByteStream, port: Port, receive: Callable[[bytes], Iterable[None]], number: int = 0
    ) -> None:
        super().__init__("psf-link")
        self.number = number
        self._stream = stream
        self._port = port
        self._receive = receive
        self._shortcut: Shortcut | None = None
        self._moved = False  # whether what leaves takes the shortcut ...
        self._arrives_there = False  # ... and what comes
        self._writing: _Write | Shortcut | None = None
        self._ended: asyncio.Future[None] | None = None  # while it is pumped; gets what a write raised
        self._turn: asyncio.Handle | None = None
        self._report: asyncio.TimerHandle | None = None
        self._report_due = False
        self._overdue: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Ends the pumps; `pump` returns soon after."""
        super().close()
        for handle in (self._turn, self._report, self._overdue):
            if handle is not None:
                handle.cancel()
        self._turn = self._report = self._overdue = None
        if self._shortcut is not None:
            self._shortcut.close()
            self._shortcut = None  # each refers to the other, and gRPC keeps its socket as long as this lives

    def shorten(self, sock: socket.socket) -> None:
        """Each end has one of a socket: what leaves goes that way, after a message that says so."""
        if self._closed or self._shortcut is not None:
            sock.close()
            return
        self._shortcut = Shortcut(sock, self._take, self._broke)
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._arrives_there:
            self._shortcut.start()
        self._report_due = True
        self.wake()

    def expect_shortcut(self) -> None:
        """The other end said that all that follows comes through the socket.

        It may have taken one that was given up here meanwhile, since its answer came too late. What it wrote
        there is lost, so the connection must be made anew.
        """
        if self._arrives_there or self._closed:
            return
        self._arrives_there = True
        if self._shortcut is not None:
            self._shortcut.start()
        else:
            error = ConnectionError("the other end writes to a socket that is not here")
            self._overdue = asyncio.get_running_loop().call_later(SHORTCUT_SECONDS, self._broke, error)

    def wake(self, *, now: bool = False) -> None:
        """There is something to write: next turn of the loop, with all that comes till then; or `now`.

        Nothing happens while a write is under way: the next one begins when it is done.
        """
        if self._ended is None or self._closed or self._writing is not None:
            return
        if now:
            self._write_now()
        elif self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._write_now)

    async def _read(self) -> None:
        read, take = self._stream.read, self._take
        while True:
            message = await read()
            if message is grpc.aio.EOF:
                return
            for _ in take(message):
                await asyncio.sleep(0)

    def _take(self, message: bytes) -> Iterator[None]:
        yield from self._receive(message)
        session = self._port.session
        if session.owes_report and not session.has_unsent:
            self.report_soon()

    def report_soon(self) -> None:
        """Something has arrived or was consumed: says so with the next frame, or in a moment without one."""
        session = self._port.session
        if session.report_is_urgent:
            self._report_due = True
            self.wake()
        elif self._report is None and not self._closed:
            self._report = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report_now)

    def _report_now(self) -> None:
        self._report = None
        self._report_due = self._port.session.owes_report
        self.wake()

    async def _write(self) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self.wake()
        try:
            await self._ended
        finally:
            self._ended = None
            writing, self._writing = self._writing, None
            if writing is not None:
                writing.drop()

    def _write_now(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        session = self._port.session
        if self._writing is not None or not (session.has_unsent or self._report_due):
            return
        shortcut = self._shortcut
        if shortcut is not None and self._moved:
            self._writing = shortcut
            shortcut.send(self._message(), self._written)
            return
        self._moved = shortcut is not None
        writing = self._writing = _Write(self._stream.write(self._message(moves=self._moved)), self._written)
        writing.step()

    def _written(self, error: BaseException | None) -> None:
        self._writing = None
        if error is not None:
            self._broke(error)
        elif self._port.session.has_unsent or self._report_due:
            self.wake()

    def _broke(self, error: BaseException) -> None:
        if self._ended is None:
            self.close()
        elif not self._ended.done():
            self._ended.set_exception(error)

    def _message(self, *, moves: bool = False) -> bytes:
        session = self._port.session
        self._report_due = self._port.alone = False
        first, batch = session.take()
        return frames.encode_batch(first, session.report(), batch, moves=moves)


class _Write:
    """One write, run by callbacks instead of a task: it begins at once, and costs no turn of the loop.

    Args:
        writing: the stream's coroutine.
        done: told what it raised, or None.
    """

    __slots__ = ("_done", "_waits_for", "_writing")

    def __init__(
        self, writing: Coroutine[Any, Any, None], done: Callable[[BaseException | None], None]
    ) -> None:
        self._writing = writing
        self._done = done
        self._waits_for: asyncio.Future[Any] | None = None

    def step(self, _: object = None) -> None:
        """Runs the coroutine until it waits again or ends."""
        try:
            waits_for = self._writing.send(None)
        except StopIteration:
            self._done(None)
        except asyncio.CancelledError:  # of the stream; it must not look like one of whoever posted the frame
            self._done(ConnectionError("the stream was cancelled"))
        except Exception as error:
            self._done(error)
        else:
            if waits_for is None:  # a bare `yield`, as of asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(self.step)
                return
            self._waits_for = waits_for
            waits_for.add_done_callback(self.step)

    def drop(self) -> None:
        """The connection has ended, so nobody waits for the outcome."""
        if self._waits_for is not None:
            self._waits_for.remove_done_callback(self.step)
            self._waits_for.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._writing.close()


def _nothing() -> None:
    pass


async def close_quietly(channel: grpc.aio.Channel) -> None:
    """Closes a channel whose calls have ended; a failure to do so concerns nobody."""
    with contextlib.suppress(Exception):
        await channel.close()
