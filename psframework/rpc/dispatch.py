"""The calls that the other end has made: finds the method, runs the handler, sends exactly one reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError, Message

from psframework.errors import DeadlineExceeded, PsfError, WireError
from psframework.rpc import frames
from psframework.rpc.call import NO_PAYLOAD, Call, Incoming
from psframework.rpc.calls import Outgoing
from psframework.rpc.deadline import Deadline
from psframework.rpc.frames import Frame
from psframework.rpc.identity import authorize
from psframework.rpc.service import Handler, MethodTable
from psframework.rpc.status import error_to_detail
from psframework.rpc.stream import Port
from psframework.rpc.timers import Alarms

if TYPE_CHECKING:
    from psframework.rpc.peer import Peer


class Running:
    """One call that runs here."""

    __slots__ = ("call", "cost", "expired", "task", "tick")

    def __init__(self, call: int, cost: int) -> None:
        self.call = call
        self.cost = cost
        self.task: asyncio.Task[None] | None = None
        self.tick = 0
        self.expired = False


class Dispatcher:
    """Incoming calls of one session, by the caller's ids.

    Args:
        port: the way out, for replies.
        methods: what may be called.
        peer: the other end, for handlers that call back.
        max_payload: largest request payload accepted, in bytes.
    """

    def __init__(self, port: Port, methods: MethodTable, peer: Peer, max_payload: int) -> None:
        self._port = port
        self._methods = methods
        self._peer = peer
        self._max_payload = max_payload
        self._running: dict[int, Running] = {}
        self._last = 0
        self._alarms = Alarms(self.cancel)

    def __len__(self) -> int:
        return len(self._running)

    def request(self, frame: Frame) -> None:
        """Starts a call; whatever is wrong with it is its reply. WireError only for ids out of order."""
        number = frame.call
        if number <= self._last:
            raise WireError(f"call {number} after call {self._last}: ids must grow")
        self._last = number
        header, lane = frame.header, frame.lane
        running = Running(number, frames.cost(header, lane, frame.sizes if lane else ()))
        try:
            method, inline = self._methods.find(frame.method)
            if method.roles:
                authorize(self._peer.info, method.roles, frame.method)
            message = method.request_type.FromString(header)
            call = self._call(frame, lane)
        except DecodeError:
            self._fail(running, WireError(f"the header of {frame.method[:200]!r} is not its request message"))
        except PsfError as error:
            self._fail(running, error)
        else:
            if inline:
                self._run_inline(running, method.handler, message, call)
            else:
                self._start(running, method.handler, message, call)

    def cancel(self, call: int) -> None:
        """The caller no longer wants the reply. Nothing happens if it is on its way already."""
        running = self._running.get(call)
        if running is not None and running.task is not None:
            running.task.cancel()

    def close(self) -> None:
        """The caller is lost: cancels all that runs for it."""
        self._alarms.close()
        for running in list(self._running.values()):
            if running.task is not None:
                running.task.cancel()

    async def wait_idle(self) -> None:
        """Returns when no handler runs any more."""
        while tasks := [each.task for each in self._running.values() if each.task is not None]:
            await asyncio.wait(tasks)

    def _call(self, frame: Frame, lane: int) -> Call:
        payload = NO_PAYLOAD
        if lane or frame.sizes:
            frames.check_payload(frame, self._port.lanes, self._max_payload)
            payload = Incoming(frame.sizes, [memoryview(part) for part in frame.parts])
        left = frame.timeout_us
        deadline = Deadline.after(left * 1e-6) if left else Deadline.NEVER
        peer = self._peer
        return Call(peer.info, deadline, payload, caller=peer, segment=peer.segment)

    def _run_inline(self, running: Running, handler: Handler, message: Message, call: Call) -> None:
        try:
            response = handler(message, call)
            if not isinstance(response, Message):  # a callable that hides an async function
                self._start(running, _Awaited(response), message, call)
                return
        except Exception as error:
            self._fail(running, error)
        else:
            self._reply(running, response, call)

    def _start(self, running: Running, handler: Handler, message: Message, call: Call) -> None:
        self._running[running.call] = running
        running.tick = self._alarms.add(running.call, call.deadline)
        running.task = asyncio.get_running_loop().create_task(self._run(running, handler, message, call))

    async def _run(self, running: Running, handler: Handler, message: Message, call: Call) -> None:
        try:
            response = await handler(message, call)  # type: ignore[misc]
        except asyncio.CancelledError:
            self._fail(running, DeadlineExceeded("cancelled: the deadline passed, or the caller gave up"))
            raise
        except Exception as error:
            self._fail(running, error)
        else:
            self._reply(running, response, call)
        finally:
            self._running.pop(running.call, None)
            self._alarms.discard(running.call, running.tick)

    def _reply(self, running: Running, response: Message, call: Call) -> None:
        try:
            header = response.SerializeToString()
            payload = self._payload(call) if call.reply else None
        except Exception as error:
            self._fail(running, error)
            return
        frame = Frame(kind=frames.REPLY, call=running.call, header=header)  # type: ignore[arg-type]
        if payload is not None:
            payload.fill(frame)
        self._post(running, frame)

    def _payload(self, call: Call) -> Outgoing:
        assert not hasattr(call.reply, "__anext__")
        return Outgoing(frames.INLINE, call.reply_sizes, call.reply)

    def _fail(self, running: Running, error: BaseException) -> None:
        self._post(running, Frame(kind=frames.REPLY, call=running.call, error=error_to_detail(error)))  # type: ignore[arg-type]

    def _post(self, running: Running, frame: Frame) -> None:
        cost = frames.cost(frame.header, frame.lane, frame.sizes)
        self._port.session.consumed += running.cost
        self._port.when_admitted(cost, _always, lambda: self._port.post(frame))  # type: ignore[arg-type]


def _always() -> bool:
    return True


class _Awaited:
    """A handler whose coroutine exists already."""

    def __init__(self, started: Awaitable[Message]) -> None:
        self._started = started

    def __call__(self, request: object, call: Call) -> Awaitable[Message]:
        return self._started
