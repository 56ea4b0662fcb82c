"""The calls that the other end has made: finds the method, runs the handler, sends exactly one reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError, Message

from psframework.errors import DeadlineExceeded, PsfError, WireError
from psframework.rpc.call import NO_PAYLOAD, Call, Incoming
from psframework.rpc.deadline import Deadline
from psframework.rpc.failures import log_failure
from psframework.rpc.security.audit import authorize
from psframework.rpc.service import Handler, MethodTable
from psframework.rpc.session import frames
from psframework.rpc.session.bulk import Bulk
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.replies import Replies
from psframework.rpc.session.segments import Segments, lend, on_loop
from psframework.rpc.session.stream import Port
from psframework.rpc.session.timers import Alarms

if TYPE_CHECKING:
    from psframework.rpc.session.peer import Peer


SMALL: Final = 4096
"""Bytes of a call that need no account while its handler waits for others: 10,000 such calls are no load."""


class Running:
    """One call that runs here."""

    __slots__ = ("began", "cost", "lane", "method", "number", "payload", "task", "tick", "unwanted")

    def __init__(self, number: int, cost: int, lane: int) -> None:
        self.number = number
        self.cost = cost
        self.lane = lane
        self.method = ""
        self.began = 0.0
        self.unwanted = False
        self.payload = NO_PAYLOAD
        self.task: asyncio.Task[None] | None = None
        self.tick = 0


class Dispatcher:
    """Incoming calls of one session, by the caller's ids.

    Args:
        port: counts what is consumed.
        bulk: the striped lane.
        segments: the shared-memory lane.
        replies: the way back.
        methods: what may be called.
        peer: the other end, for handlers that call back.
        max_payload: largest request payload accepted, in bytes.
    """

    def __init__(
        self,
        port: Port,
        bulk: Bulk,
        segments: Segments,
        replies: Replies,
        *,
        methods: MethodTable,
        peer: Peer,
        max_payload: int,
    ) -> None:
        self._port = port
        self._bulk = bulk
        self._segments = segments
        self._replies = replies
        self._methods = methods
        self._peer = peer
        self._max_payload = max_payload
        self._running: dict[int, Running] = {}
        self._last = 0
        self._alarms = Alarms(self.cancel)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def last(self) -> int:
        """The highest id seen."""
        return self._last

    def request(self, frame: Frame) -> None:
        """Starts a call; whatever is wrong with it is its reply. WireError only for ids out of order."""
        number = frame.call
        if number <= self._last:
            raise WireError(f"call {number} after call {self._last}: ids must grow")
        self._last = number
        header, lane = frame.header, frame.lane
        running = Running(number, frames.cost(header, lane, frame.sizes if lane else ()), lane)
        self._port.session.requests.take_in(running.cost)
        running.method = path = frame.method
        try:
            method, inline = self._methods.find(path)
            if method.roles:
                authorize(self._peer.info, method.roles, path)
            message = method.request_type.FromString(header)
            call = self._call(running, frame, len(header))
        except DecodeError:
            self._fail(running, WireError(f"the header of {path[:200]!r} is not its request message"))
        except PsfError as error:
            self._fail(running, error)
        else:
            if not inline:
                self._start(running, method.handler, message, call)
            elif lane == frames.STRIPED:
                self._start(running, _late(method.handler), message, call)
            else:
                self._run_inline(running, method.handler, message, call)

    def cancel(self, number: int) -> None:
        """The caller no longer wants the reply. Nothing happens if it is on its way already."""
        running = self._running.get(number)
        if running is not None:
            self._stop(running)

    def release(self, number: int) -> None:
        """The caller needs the payload of a reply no more."""
        self._replies.release(number)
        self.cancel(number)

    def close(self, error: PsfError) -> None:
        """The caller is lost: ends all that runs for it."""
        self._alarms.close()
        for running in list(self._running.values()):
            running.payload.fail(error)
            self._stop(running)

    def _call(self, running: Running, frame: Frame, header_bytes: int) -> Call:
        if running.lane or frame.sizes:
            running.payload = self._payload(frame, running.lane)
        left = frame.timeout_us
        deadline = Deadline.after(left * 1e-6) if left else Deadline.NEVER
        peer = self._peer
        call = Call(
            peer.info, deadline, running.payload, caller=peer, segment=self._segments.get, room=peer.room
        )
        if running.cost > SMALL:
            call.taken = partial(self._taken, running)
            call.header_bytes = header_bytes if header_bytes > SMALL else 0
        return call

    def _payload(self, frame: Frame, lane: int) -> Incoming:
        frames.check_payload(frame, self._port.agreed, self._max_payload)
        sizes = list(frame.sizes)
        self._port.stats.add_received(frames.LANES[lane], sum(sizes))
        if lane == frames.INLINE:
            return Incoming(sizes, [memoryview(part) for part in frame.parts])
        if lane == frames.SHM:
            views = self._segments.views(frame.segment, frame.offsets, sizes)
            return Incoming(sizes, lend(views, on_loop(self._free, frame.call)))
        if lane == frames.DEVICE:
            copies = self._segments.devices.parts(frame)
            self._free(frame.call)
            return Incoming(sizes, cast(list[memoryview], copies))  # only values go on devices
        payload = Incoming(sizes)
        self._bulk.expect((frame.call, False), sizes, payload.feed, _nothing)
        return payload

    def _run_inline(self, running: Running, handler: Handler, message: Message, call: Call) -> None:
        try:
            response = handler(message, call)
            if isinstance(response, Message) and not call.reply_sizes:
                self._consume(running)
                if self._replies.plain(running.number, response):
                    return
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what follows in the same message must still be taken
            self._fail(running, error)
            return
        if not isinstance(response, Message):  # a callable that hides an async function
            self._start(running, _awaited(response), message, call)
        else:
            self._start(running, _finished(response), message, call)

    def _start(self, running: Running, handler: Handler, message: Message, call: Call) -> None:
        self._running[running.number] = running
        running.tick = self._alarms.add(running.number, call.deadline)
        work = self._run(running, handler, message, call)
        # In a context of its own: nothing of whoever opened the session, such as its gradient mode.
        running.task = asyncio.get_running_loop().create_task(work, context=Context())

    def _stop(self, running: Running) -> None:
        # A task that is cancelled before its first step never runs at all, so it could not reply.
        running.unwanted = True
        if running.began and running.task is not None:
            running.task.cancel()

    async def _run(self, running: Running, handler: Handler, message: Message, call: Call) -> None:
        running.began = time.monotonic()
        try:
            if running.unwanted:
                raise asyncio.CancelledError
            response = await handler(message, call)  # type: ignore[misc]
            if call.reply_sizes:
                await self._replies.bulk(running.number, response, call, lambda: self._consume(running))
            else:
                self._consume(running)  # so that the reply says so
                if not self._replies.plain(running.number, response):
                    call.hold_reply(response.ByteSize())
                    await self._replies.in_turn(running.number, response)
        except asyncio.CancelledError:
            if call.reply_lost is not None:
                call.reply_lost()
            text = "cancelled: the deadline passed, or the caller gave up"
            self._replies.error(running.number, DeadlineExceeded(text), untouched=not call.started)
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also SystemExit: no call may end the service
            if call.reply_lost is not None:
                call.reply_lost()
            self._log(running, error, users=call.started)
            self._replies.error(running.number, error, untouched=not call.started)
        finally:
            call.over()
            self._end(running)

    def _log(self, running: Running, error: BaseException, *, users: bool = False) -> None:
        seconds = time.monotonic() - running.began if running.began else 0.0
        log_failure(running.method[:200], self._peer.info.name, error, seconds, users=users)

    def _free(self, number: int) -> None:
        self._port.post(Frame(kind=frames.FREE, call=number))  # type: ignore[arg-type]

    def _fail(self, running: Running, error: BaseException) -> None:
        self._log(running, error)
        self._replies.error(running.number, error, untouched=True)
        self._end(running)

    def _consume(self, running: Running) -> None:
        cost, running.cost = running.cost, 0
        self._port.session.requests.consumed += cost

    def _taken(self, running: Running) -> None:
        """The handler waits for others, perhaps for calls of the caller, which may need the window."""
        self._consume(running)
        self._report()

    def _end(self, running: Running) -> None:
        self._consume(running)
        if running.lane == frames.STRIPED:
            self._bulk.forget((running.number, False))
        elif running.lane in frames.PLACED and running.payload is NO_PAYLOAD:
            self._free(running.number)  # refused before anything looked at it
        running.payload = NO_PAYLOAD
        running.task = None  # with its traceback it would be a cycle that keeps the payload alive
        if self._running.pop(running.number, None) is not None:
            self._alarms.discard(running.number, running.tick)
        self._report()

    def _report(self) -> None:
        link, session = self._port.link, self._port.session
        if link is not None and not session.has_unsent and session.owes_report:
            link.report_soon()


def _nothing() -> None:
    pass


def _late(handler: Handler) -> Handler:
    """A plain handler for a payload that is still arriving: runs once all of it is there."""

    async def run(message: Message, call: Call) -> Message:
        await call.payload.arrived()
        response = handler(message, call)
        return response if isinstance(response, Message) else await response

    return run


def _awaited(started: Awaitable[Message]) -> Handler:
    async def run(_: Message, __: Call) -> Message:
        return await started

    return run


def _finished(response: Message) -> Handler:
    async def run(_: Message, __: Call) -> Message:
        return response

    return run
