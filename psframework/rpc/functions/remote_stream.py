"""The consumer's end of a generator that runs on another member."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from google.protobuf.message import Message

from psframework.errors import PeerLost, PsfError
from psframework.proto.v1.remote_pb2 import (
    CloseStreamReply,
    CloseStreamRequest,
    InvokeRequest,
    NextItemsReply,
    NextItemsRequest,
    OpenStreamReply,
    OpenStreamRequest,
)
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import running_deadline
from psframework.rpc.functions.errand import STALLED, Callee, Errand, Operation
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.remote_service import SERVICE
from psframework.rpc.functions.routes import Routes
from psframework.rpc.functions.unpacking import Unread
from psframework.rpc.values import arguments
from psframework.rpc.values.decoder import Home, here
from psframework.rpc.values.journey import Journey

CLOSE_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 1.0


def stream_number(reply: Any, parts: Sequence[memoryview], journey: Journey) -> int:
    """Unpacks the answer to whatever opens a stream."""
    number: int = reply.stream
    return number


def _items(reply: NextItemsReply, parts: Sequence[memoryview], journey: Journey) -> Any:
    """Items, and whether they are the last ones."""

    def read(home: Home = here) -> tuple[list[Any], bool]:
        try:
            return [arguments.decode(item, parts, journey, home=home) for item in reply.items], reply.done
        except Exception:
            home(decline)
            raise

    def decline() -> None:
        for item in reply.items:
            arguments.decline(item, journey)

    return Unread(read) if any(map(arguments.may_build, reply.items)) else read()


def _nothing(reply: CloseStreamReply, parts: Sequence[memoryview], journey: Journey) -> None:
    return None


OPEN: Final = Operation(f"/{SERVICE}/OpenStream", OpenStreamReply, stream_number)
NEXT: Final = Operation(f"/{SERVICE}/NextItems", NextItemsReply, _items)
CLOSE: Final = Operation(f"/{SERVICE}/CloseStream", CloseStreamReply, _nothing)


def opening(call: InvokeRequest) -> OpenStreamRequest:
    """The request for a generator, which ends with the call that this is made in."""
    request = OpenStreamRequest(call=call)
    left = running_deadline().seconds()
    if left is not None:
        request.timeout_us = int(left * 1e6) + 1
    return request


class _Opening(Errand):
    """The call that opens a stream. What it opens after its deadline, nobody else would close."""

    __slots__ = ()

    def set_result(self, reply: tuple[Any, Sequence[memoryview]], /) -> None:
        """The reply has come."""
        late = self.future.done()
        super().set_result(reply)
        if late and self.callee is not None:
            _close(self.routes, self.callee, reply[0].stream)


def _close(routes: Any, callee: Callee, number: int) -> Future[None] | None:
    """Tells a member to end a generator, if it lives."""
    if callee.lost is not None:
        return None
    request = CloseStreamRequest(stream=number)
    errand = Errand(routes, CLOSE, request, Journey(callee.info), Deadline.after(CLOSE_SECONDS))
    errand.future.add_done_callback(partial(_told, routes, callee, number))
    routes.send_to(errand, callee)
    return errand.future


def _told(routes: Any, callee: Callee, number: int, told: asyncio.Future[None]) -> None:
    error = None if told.cancelled() else told.exception()
    if (
        isinstance(error, PeerLost) and error.reason == STALLED
    ):  # it may come back, and the generator is there
        asyncio.get_running_loop().call_later(AGAIN_SECONDS, _close, routes, callee, number)


class _Remote:
    """What must outlive the iterator so that the generator can be closed after it."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.loop = asyncio.get_running_loop()
        self.number: int | None = None
        self.callee: Callee | None = None
        self.opening: Errand | None = None  # until the stream is open
        self.fetching: Future[tuple[list[Any], bool]] | None = None
        self.closed = False

    def close_later(self) -> None:
        """For finalizers, in whichever thread."""
        if not self.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the session with it
                self.loop.call_soon_threadsafe(self.close)

    def close(self) -> Future[None] | None:
        """Tells the other side, if there is a generator."""
        if self.closed:
            return None
        self.closed = True
        if self.opening is not None:
            self.opening.future.add_done_callback(self._opened)
            return None
        if self.fetching is not None and not self.fetching.cancel():
            self.fetching.exception()  # nobody else looks
        return self._tell()

    def _opened(self, opening: asyncio.Future[int]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.opened(opening.result())
            self._tell()

    def opened(self, number: int) -> None:
        """The generator exists."""
        if self.opening is not None:
            self.number, self.callee, self.opening = number, self.opening.callee, None

    def _tell(self) -> Future[None] | None:
        if self.number is None or self.callee is None:
            return None
        return _close(self.routes, self.callee, self.number)


class RemoteStream:
    """Items of a generator that runs on another member: an async iterator. Made by `rpc_stream`.

    Ending the iteration early, also by dropping the iterator, closes the generator; `aclose()` does it at
    once, and so does leaving `async with`.

    Args:
        routes: sends its calls.
        target: (name, incarnation or None) of the member.
        request: what opens it, and with which operation.
        journey: of the request.
        deadline: makes the deadline of each call.
    """

    def __init__(
        self,
        routes: Routes,
        target: tuple[str, int | None],
        request: tuple[Operation, Message],
        journey: Journey,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._remote = remote = _Remote(routes)
        self._deadline = deadline
        self._ready: deque[Any] = deque()
        self._ended = False
        errand = _Opening(routes, *request, journey, deadline())
        remote.opening = errand
        routes.send(errand, *target)
        weakref.finalize(self, remote.close_later).atexit = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                items, done = await self._fetch()
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._ended = True
                self._remote.close()  # the error may be of this end only
                raise
            self._ready.extend(items)
            if done:
                self._ended = self._remote.closed = True
            else:
                self._ask()  # so that the next ones come while these are used
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Closes the generator, and waits until it will run no further."""
        self._ended = True
        self._ready.clear()
        closing = self._remote.close()
        if closing is not None:
            with contextlib.suppress(PsfError):
                await closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _fetch(self) -> tuple[list[Any], bool]:
        remote = self._remote
        if remote.opening is not None:
            # Shielded: whoever stops waiting for an item may ask again, and none is lost.
            remote.opened(await asyncio.shield(remote.opening.future))
        if remote.fetching is None:
            self._ask()
        assert remote.fetching is not None
        fetched = await asyncio.shield(remote.fetching)
        remote.fetching = None
        return fetched

    def _ask(self) -> None:
        remote = self._remote
        assert remote.number is not None and remote.callee is not None
        request = NextItemsRequest(stream=remote.number)
        errand = Errand(remote.routes, NEXT, request, Journey(remote.callee.info), self._deadline())
        remote.fetching = errand.future
        remote.routes.send_to(errand, remote.callee)
