"""Replies on their way out: each call gets exactly one, and its payload is kept until it is not needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from google.protobuf.message import Message

from psframework.errors import ArgumentError
from psframework.rpc.call import Call, PartStream
from psframework.rpc.session import frames
from psframework.rpc.session.adapter import gather_parts
from psframework.rpc.session.bulk import Bulk
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.payload import Outgoing, Sender, byte_views, part_views
from psframework.rpc.session.stream import Port
from psframework.rpc.session.transfer import Sending
from psframework.rpc.status import error_to_detail
from psframework.wire.lanes import INLINE_BYTES, Lane

WAITING, SENT, RELEASED = "waiting for the window", "frame sent", "released by the caller"


class Replies:
    """Sends replies for a Dispatcher.

    Args:
        port: the way out.
        bulk: the striped lane.
        sender: chooses lanes.
    """

    def __init__(self, port: Port, bulk: Bulk, sender: Sender) -> None:
        self._port = port
        self._bulk = bulk
        self._sender = sender
        self._held: dict[int, Outgoing] = {}  # in shared or device memory, until the caller releases them
        self._streams: dict[int, str] = {}  # payloads still being made: WAITING, SENT or RELEASED

    def plain(self, number: int, response: Message) -> bool:
        """Replies without a payload. False if others wait for the window: then it has to leave `in_turn`."""
        header = _header(response)
        if not self._port.replies.admits(frames.FRAME_COST + len(header)):
            return False
        self._port.post(Frame(kind=frames.REPLY, call=number, header=header))  # type: ignore[arg-type]
        return True

    async def in_turn(self, number: int, response: Message) -> None:
        """The same, once the window has room; cancelled before, it has sent nothing."""
        frame = Frame(kind=frames.REPLY, call=number, header=_header(response))  # type: ignore[arg-type]
        await self._leave(frames.FRAME_COST + len(frame.header), lambda: self._post(frame))

    def error(self, number: int, error: BaseException, *, untouched: bool = False) -> None:
        """Replies with an error; after a reply whose payload is still being made, ends that.

        `untouched` says that nothing of what the request brought was taken over.
        """
        state = self._streams.pop(number, WAITING)
        if state is RELEASED:
            return
        detail = error_to_detail(error)
        detail.untouched = untouched
        if state is SENT:
            self._bulk.drop((number, True))
            self._post(Frame(kind=frames.ABORT, call=number, error=detail))  # type: ignore[arg-type]
            return
        frame = Frame(kind=frames.REPLY, call=number, error=detail)  # type: ignore[arg-type]
        self._port.replies.when_admitted(frames.FRAME_COST, _always, lambda: self._post(frame))

    async def bulk(self, number: int, response: Message, call: Call, ready: Callable[[], None]) -> None:
        """Replies with the payload that `call` holds; parts of an iterator leave as they are made.

        `ready` is called once the reply has only to leave. Cancelled before it has left, it has sent nothing.

        In shared memory they leave together: one copy of all costs less there than a message for each.
        """
        frame = Frame(kind=frames.REPLY, call=number, header=_header(response))  # type: ignore[arg-type]
        lanes = self._port.lanes
        large = sum(call.reply_sizes) > INLINE_BYTES
        if (
            isinstance(call.reply, AsyncIterator)
            and large
            and Lane.SHM not in lanes
            and Lane.STRIPED in lanes
        ):
            await self._stream(frame, call.reply, call.reply_sizes)
            return
        views = part_views(await gather_parts(call.reply, len(call.reply_sizes)))
        if [len(view) for view in views] != list(call.reply_sizes):
            raise ArgumentError(f"the reply's parts do not have the announced sizes {call.reply_sizes}")
        payload = await self._sender.choose(views)
        ready()
        await self._send(frame, payload)

    def release(self, number: int) -> None:
        """The caller needs the payload no more."""
        if number in self._streams:
            self._streams[number] = RELEASED
        self._bulk.drop((number, True))
        held = self._held.pop(number, None)
        if held is not None:
            held.free()

    async def _admitted(self, cost: int, send: Callable[[], None]) -> None:
        """Runs `send` once the window has room; cancelled before, it never does."""
        if self._port.replies.admits(cost):
            send()
            return
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go() -> None:
            send()
            sent.set_result(None)

        ticket = self._port.replies.when_admitted(cost, lambda: not sent.done(), go)
        try:
            await sent
        except asyncio.CancelledError:
            self._port.replies.withdraw(ticket)
            raise

    async def _leave(self, cost: int, send: Callable[[], None]) -> None:
        """The same for a whole reply: one that is cancelled in the very turn in which it leaves has left."""
        left = False

        def go() -> None:
            nonlocal left
            send()
            left = True

        try:
            await self._admitted(cost, go)
        except asyncio.CancelledError:
            if not left:
                raise

    async def _send(self, frame: Frame, payload: Outgoing) -> None:
        payload.fill(frame)

        def send() -> None:
            number = self._port.post(frame)
            self._sender.count(payload)
            if payload.lane == frames.STRIPED:
                self._bulk.send((frame.call, True), number, payload.sizes, payload.parts)
            elif payload.lane in frames.PLACED:
                self._held[frame.call] = payload

        try:
            await self._leave(frames.cost(frame.header, payload.lane, payload.sizes), send)
        except asyncio.CancelledError:
            payload.free()
            raise

    async def _stream(self, frame: Frame, parts: PartStream, sizes: tuple[int, ...]) -> None:
        """Sends the frame first, then each part as the handler's iterator makes it."""
        self._streams[frame.call] = WAITING
        payload = Outgoing(frames.STRIPED, sizes, None)
        payload.fill(frame)
        sending: Sending | None = None

        def send() -> None:
            nonlocal sending
            number = self._port.post(frame)
            self._sender.count(payload)
            self._streams[frame.call] = SENT
            sending = self._bulk.send((frame.call, True), number, sizes, None)

        await self._admitted(frames.cost(frame.header, payload.lane, sizes), send)
        assert sending is not None
        async for index, part in parts:
            await self._bulk.add(sending, index, byte_views((part,))[0])
        if not sending.is_whole:
            raise ArgumentError(f"the reply's iterator ended before all {len(sizes)} parts were made")
        self._streams.pop(frame.call, None)

    def _post(self, frame: Frame) -> None:
        self._port.post(frame)


def _header(response: Message) -> bytes:
    """The reply's message; larger than what the other end can receive, it would break every connection."""
    header = response.SerializeToString()
    if len(header) > frames.MAX_HEADER:
        raise ArgumentError(f"a reply of {len(header)} bytes: pass bulk data with `reply_parts`")
    return header


def _always() -> bool:
    return True
