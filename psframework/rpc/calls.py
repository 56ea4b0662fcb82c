"""The calls that this end has made and that the other has not answered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from psframework.errors import DeadlineExceeded, PeerLost, PsfError, WireError
from psframework.rpc import frames
from psframework.rpc.deadline import Deadline
from psframework.rpc.frames import Frame
from psframework.rpc.status import detail_to_error
from psframework.rpc.stream import Port
from psframework.rpc.timers import Alarms
from psframework.wire.memory import Buffer

M = TypeVar("M", bound=Message)
OnPart = Callable[[int, memoryview], None]
Reply = tuple[M, list[memoryview]]


@dataclass(slots=True)
class Outgoing:
    """A payload on its way out, lane chosen.

    Args:
        lane: number of the lane; 0 without payload.
        sizes: lengths of the parts in bytes.
        parts: the parts themselves.
    """

    lane: int = frames.NO_LANE
    sizes: Sequence[int] = ()
    parts: Sequence[Buffer] = ()

    def fill(self, frame: Frame) -> None:
        """Writes what the frame must say about the payload."""
        if self.lane:
            frame.lane = self.lane  # type: ignore[assignment]
            frame.sizes.extend(self.sizes)
            if self.lane == frames.INLINE:
                frame.parts.extend(bytes(part) for part in self.parts)


NOTHING = Outgoing()


class Pending:
    """One call that waits for its reply."""

    __slots__ = ("call", "future", "method", "number", "on_part", "response_type", "tick")

    def __init__(self, call: int, method: str, response_type: type[Message], on_part: OnPart | None) -> None:
        self.call = call
        self.method = method
        self.response_type = response_type
        self.on_part = on_part
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.number = 0  # of the frame; 0 while it waits for the window
        self.tick = 0

    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return not self.future.done()


class Calls:
    """Outgoing calls of one session, by id.

    A call stays here until its reply has come, also if nobody waits any more: only then is it sure that
    the other end no longer touches its payload.

    Args:
        port: the way out.
        peer: name of the other end, for messages.
        max_payload: largest reply payload accepted, in bytes.
    """

    def __init__(self, port: Port, peer: str, max_payload: int) -> None:
        self._port = port
        self._peer = peer
        self._max_payload = max_payload
        self._pending: dict[int, Pending] = {}
        self._last = 0
        self._alarms = Alarms(self._expire)

    def __len__(self) -> int:
        return len(self._pending)

    def start(
        self,
        method: str,
        header: bytes,
        response_type: type[Message],
        *,
        payload: Outgoing = NOTHING,
        deadline: Deadline,
        on_part: OnPart | None = None,
    ) -> Pending:
        """Makes a call; its future has (response, parts), or raises."""
        self._last += 1
        pending = Pending(self._last, method, response_type, on_part)
        self._pending[pending.call] = pending
        pending.tick = self._alarms.add(pending.call, deadline)
        cost = frames.cost(header, payload.lane, payload.sizes)
        self._port.when_admitted(cost, pending.wanted, lambda: self._send(pending, header, payload, deadline))
        return pending

    def cancel(self, pending: Pending) -> None:
        """Nobody waits for this call any more: tells the other end."""
        self._alarms.discard(pending.call, pending.tick)
        if pending.number:
            if pending.call in self._pending:
                self._port.post(Frame(kind=frames.CANCEL, call=pending.call))  # type: ignore[arg-type]
        else:
            self._pending.pop(pending.call, None)
        pending.future.cancel()

    def reply(self, frame: Frame) -> None:
        """Takes a reply; WireError if no such call was made or its payload can't be right."""
        pending = self._pending.pop(frame.call, None)
        if pending is None:
            raise WireError(f"a reply to call {frame.call}, which was not made or has been answered")
        self._alarms.discard(pending.call, pending.tick)
        header = frame.header
        lane = frame.lane
        self._port.session.consumed += frames.cost(header, lane, frame.sizes if lane else ())
        future = pending.future
        if future.done():
            return
        if not header and frame.HasField("error"):
            future.set_exception(detail_to_error(frame.error))
            return
        try:
            parts = self._inline_parts(frame, pending) if lane else []
            future.set_result((pending.response_type.FromString(header), parts))
        except (DecodeError, PsfError) as error:
            future.set_exception(WireError(f"{self._peer} answered {pending.method} wrongly: {error}"))

    def fail(self, reason: str, message: str) -> None:
        """The peer is lost: every call ends with PeerLost, which says whether it may have run."""
        sent = self._port.session.sent
        pending, self._pending = list(self._pending.values()), {}
        self._port.drop_waiting()
        self._alarms.close()
        for each in pending:
            if not each.future.done():
                may_have_run = 0 < each.number <= sent
                each.future.set_exception(
                    PeerLost(message, peer=self._peer, reason=reason, may_have_run=may_have_run)
                )

    def _send(self, pending: Pending, header: bytes, payload: Outgoing, deadline: Deadline) -> None:
        frame = Frame(kind=frames.REQUEST, call=pending.call, method=pending.method, header=header)  # type: ignore[arg-type]
        left = deadline.seconds()
        if left is not None:
            frame.timeout_us = int(left * 1e6) + 1
        if payload.lane:
            payload.fill(frame)
        pending.number = self._port.post(frame)

    def _inline_parts(self, frame: Frame, pending: Pending) -> list[memoryview]:
        frames.check_payload(frame, self._port.lanes, self._max_payload)
        parts = [memoryview(part) for part in frame.parts]
        if pending.on_part is None:
            return parts
        for index, part in enumerate(parts):
            pending.on_part(index, part)
        return []

    def _expire(self, call: int) -> None:
        pending = self._pending.get(call)
        if pending is not None and not pending.future.done():
            text = f"{self._peer} did not answer {pending.method} within its deadline"
            pending.future.set_exception(DeadlineExceeded(text))
            self.cancel(pending)
