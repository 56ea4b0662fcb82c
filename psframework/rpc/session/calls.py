"""The calls that this end has made and that the other has not answered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from psframework.errors import DeadlineExceeded, PeerLost, PsfError, ResourceExhausted, WireError
from psframework.rpc.deadline import Deadline
from psframework.rpc.session import frames
from psframework.rpc.session.bulk import Bulk
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.payload import NOTHING, Outgoing, Sender
from psframework.rpc.session.segments import Segments, lend, on_loop
from psframework.rpc.session.stream import Port
from psframework.rpc.session.timers import Alarms
from psframework.rpc.status import detail_to_error

M = TypeVar("M", bound=Message)
OnPart = Callable[[int, memoryview], None]
CALL_BYTES: Final = 1024
"""About what a call that waits for its reply takes of memory, without its header and payload."""


class Answer(Protocol):
    """Where the outcome of a call goes: an asyncio.Future, or what behaves like one."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def cancel(self) -> bool: ...


class Pending:
    """One call that waits for its reply."""

    __slots__ = ("call", "cost", "future", "kept", "method", "number", "on_part", "payload", "response_type",
                 "tick", "ticket")  # fmt: skip

    def __init__(
        self,
        method: str,
        response_type: type[Message],
        payload: Outgoing,
        on_part: OnPart | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.method = method
        self.response_type = response_type
        self.payload = payload
        self.on_part = on_part
        self.future: Answer = asyncio.get_running_loop().create_future() if answer is None else answer
        self.kept = 0  # bytes that are kept here until the reply has come
        self.call = 0
        self.number = 0  # of the frame; 0 while it waits for the window
        self.cost = 0  # of the reply, while its payload arrives
        self.tick = 0
        self.ticket = 0  # of the window, while it waits for it

    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return not self.future.done()


class Calls:
    """Outgoing calls of one session, by id.

    A call stays here until its reply has come, also if nobody waits any more. Its payload on the striped lane
    is kept as long; in shared or device memory until the other end says that nothing there refers to it.

    Args:
        port: the way out.
        bulk: the striped lane.
        segments: the shared-memory lane.
        sender: counts what leaves.
        peer: name of the other end, for messages.
        max_payload: largest reply payload accepted, in bytes.

    Attributes:
        kept: bytes that calls made by `call_nowait` keep here until they are answered.
    """

    def __init__(
        self, port: Port, bulk: Bulk, segments: Segments, sender: Sender, *, peer: str, max_payload: int
    ) -> None:
        self._port = port
        self._bulk = bulk
        self._segments = segments
        self._sender = sender
        self._peer = peer
        self._max_payload = max_payload
        self._pending: dict[int, Pending] = {}
        self._placed: dict[int, Outgoing] = {}  # until the other end frees them
        self._last = 0
        self.kept = 0
        self._alarms = Alarms(self._expire)

    def __len__(self) -> int:
        return len(self._pending)

    def awaits(self, call: int) -> bool:
        """Whether the reply of a call may still come."""
        return call in self._pending

    def start(self, pending: Pending, header: bytes, deadline: Deadline) -> None:
        """Makes a call; its future will have (response, parts), or raise."""
        self._last += 1
        pending.call = self._last
        self._pending[pending.call] = pending
        self.kept += pending.kept
        pending.tick = self._alarms.add(pending.call, deadline)
        payload = pending.payload
        cost = frames.cost(header, payload.lane, payload.sizes)
        if self._port.requests.admits(cost):
            self._send(pending, header, deadline)
            return
        pending.ticket = self._port.requests.when_admitted(
            cost, pending.wanted, lambda: self._send(pending, header, deadline)
        )

    def cancel(self, pending: Pending) -> None:
        """Nobody waits for this call any more: tells the other end, if it has not answered."""
        pending.future.cancel()
        self._alarms.discard(pending.call, pending.tick)
        if pending.call not in self._pending:
            return
        if pending.cost:
            if pending.future.done():  # else whoever asked takes the reply all the same
                self._finish(pending)
        elif pending.number:
            self._port.post(Frame(kind=frames.CANCEL, call=pending.call))  # type: ignore[arg-type]
        else:
            del self._pending[pending.call]
            self.kept -= pending.kept
            pending.payload.free()
            self._port.requests.withdraw(pending.ticket)

    def reply(self, frame: Frame) -> None:
        """Takes a reply. WireError if no such call was made; a wrong payload fails only its call."""
        pending = self._pending.get(frame.call)
        if pending is None or pending.cost or not pending.number:
            raise WireError(f"a reply to call {frame.call}, which was not made or has been answered")
        header, lane = frame.header, frame.lane
        cost = frames.cost(header, lane, frame.sizes if lane else ())
        self._port.session.replies.take_in(cost)
        if lane <= frames.INLINE:
            self._port.session.replies.consumed += cost
            self._settle(pending)
            self._reply_now(pending, frame, header, lane)
        else:
            pending.cost = cost
            self._reply_bulk(pending, frame, header, lane)

    def abort(self, frame: Frame) -> None:
        """The payload of a reply will not be completed."""
        pending = self._pending.get(frame.call)
        if pending is not None and pending.cost:
            self._refuse(pending, detail_to_error(frame.error))

    def free(self, call: int) -> None:
        """The other end reads the payload of a request no more."""
        payload = self._placed.pop(call, None)
        if payload is not None:
            payload.free()

    def give_up(self, reason: str, message: str) -> None:
        """Nobody shall wait for the peer, for now: calls end with PeerLost, and are taken back."""
        for pending in list(self._pending.values()):
            if not pending.future.done():
                pending.future.set_exception(self._lost(pending, reason, message))
                self.cancel(pending)

    def fail(self, reason: str, message: str) -> None:
        """The peer is lost: every call ends with PeerLost, which says whether it may have run."""
        pending, self._pending = list(self._pending.values()), {}
        self.kept = 0
        self._port.requests.drop_waiting()
        self._port.replies.drop_waiting()
        self._alarms.close()
        for each in pending:
            if not each.future.done():
                each.future.set_exception(self._lost(each, reason, message))

    def _lost(self, pending: Pending, reason: str, message: str) -> PeerLost:
        may_have_run = 0 < pending.number <= self._port.session.sent
        return PeerLost(message, peer=self._peer, reason=reason, may_have_run=may_have_run)

    def _send(self, pending: Pending, header: bytes, deadline: Deadline) -> None:
        frame = Frame(kind=frames.REQUEST, call=pending.call, method=pending.method, header=header)  # type: ignore[arg-type]
        left = deadline.seconds()
        if left is not None:
            frame.timeout_us = int(left * 1e6) + 1
        payload = pending.payload
        if payload is NOTHING:
            pending.number = self._port.post(frame)
            return
        payload.fill(frame)
        pending.number = self._port.post(frame)
        self._sender.count(payload)
        if payload.lane == frames.STRIPED:
            self._bulk.send((pending.call, False), pending.number, payload.sizes, payload.parts)
        elif payload.lane in frames.PLACED:
            self._placed[pending.call] = payload

    # Replies

    def _settle(self, pending: Pending) -> None:
        """The call is over for the other end, so its request needs to be kept no longer."""
        del self._pending[pending.call]
        self.kept -= pending.kept
        self._alarms.discard(pending.call, pending.tick)
        if pending.payload.lane == frames.STRIPED:
            self._bulk.drop((pending.call, False))

    def _reply_now(self, pending: Pending, frame: Frame, header: bytes, lane: int) -> None:
        future = pending.future
        if future.done():
            return
        if not header and frame.HasField("error"):
            future.set_exception(detail_to_error(frame.error))
            return
        try:
            response = pending.response_type.FromString(header)
            parts = self._inline_parts(frame, pending) if lane else []
            future.set_result((response, parts))
        except (DecodeError, PsfError) as error:
            future.set_exception(WireError(f"{self._peer} answered {pending.method} wrongly: {error}"))
        except BaseException as error:  # of `on_part`
            future.set_exception(_raisable(error))

    def _inline_parts(self, frame: Frame, pending: Pending) -> list[memoryview]:
        frames.check_payload(frame, self._port.agreed, self._max_payload)
        self._port.stats.add_received(frames.LANES[frames.INLINE], sum(frame.sizes))
        parts = [memoryview(part) for part in frame.parts]
        if pending.on_part is None:
            return parts
        for index, part in enumerate(parts):
            pending.on_part(index, part)
        return []

    def _reply_bulk(self, pending: Pending, frame: Frame, header: bytes, lane: int) -> None:
        if pending.future.done():
            self._finish(pending)
            return
        try:
            response = pending.response_type.FromString(header)
            frames.check_payload(frame, self._port.agreed, self._max_payload)
            self._port.stats.add_received(frames.LANES[lane], sum(frame.sizes))
            if lane == frames.SHM:
                self._reply_shared(pending, frame, response)
            elif lane == frames.DEVICE:
                self._reply_on_device(pending, frame, response)
            else:
                self._expect(pending, list(frame.sizes), response)
        except (DecodeError, PsfError) as error:
            self._refuse(pending, WireError(f"{self._peer} answered {pending.method} wrongly: {error}"))
        except BaseException as error:  # of `on_part`
            self._refuse(pending, _raisable(error))

    def _reply_shared(self, pending: Pending, frame: Frame, response: Message) -> None:
        views = self._segments.views(frame.segment, frame.offsets, frame.sizes)
        if pending.on_part is not None:
            for index, view in enumerate(views):
                pending.on_part(index, view)
            self._finish(pending)
            pending.future.set_result((response, []))
            return
        released = on_loop(self._release, pending.call)
        self._port.session.replies.consumed += pending.cost
        self._settle(pending)
        pending.future.set_result((response, lend(views, released)))

    def _reply_on_device(self, pending: Pending, frame: Frame, response: Message) -> None:
        try:
            parts = self._segments.devices.parts(frame)
        except ResourceExhausted as error:
            self._refuse(pending, error)
            return
        if pending.on_part is not None:
            for index, part in enumerate(parts):
                pending.on_part(index, part.host())
            parts = []
        self._finish(pending)
        pending.future.set_result((response, parts))

    def _expect(self, pending: Pending, sizes: list[int], response: Message) -> None:
        parts = [memoryview(b"")] * len(sizes)
        future, on_part = pending.future, pending.on_part

        def feed(index: int, view: memoryview) -> None:
            if on_part is None:
                parts[index] = view
            elif not future.done():
                try:
                    on_part(index, view)
                except BaseException as error:
                    self._refuse(pending, _raisable(error))

        def done() -> None:
            if pending.call in self._pending:
                self._finish(pending)
            if not future.done():
                future.set_result((response, parts if on_part is None else []))

        self._bulk.expect((pending.call, True), sizes, feed, done)

    def _refuse(self, pending: Pending, error: BaseException) -> None:
        if not pending.future.done():
            pending.future.set_exception(error)
        if pending.call in self._pending:
            self._finish(pending)

    def _finish(self, pending: Pending) -> None:
        """The payload of the reply has come, or is not wanted any more."""
        self._port.session.replies.consumed += pending.cost
        self._settle(pending)
        self._bulk.forget((pending.call, True))
        self._release(pending.call)

    def _release(self, call: int) -> None:
        self._port.post(Frame(kind=frames.RELEASE, call=call))  # type: ignore[arg-type]

    def _expire(self, call: int) -> None:
        pending = self._pending.get(call)
        if pending is not None and not pending.future.done():
            text = f"{self._peer} did not answer {pending.method} within its deadline"
            pending.future.set_exception(DeadlineExceeded(text))
            self.cancel(pending)


def _raisable(error: BaseException) -> BaseException:
    """What a callback raised, in a form that a future takes and that cancels nobody."""
    if isinstance(error, StopIteration | asyncio.CancelledError):
        wrapped = RuntimeError(f"on_part raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped
    return error
