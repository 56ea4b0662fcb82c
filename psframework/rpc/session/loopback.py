"""Calls of a process to itself: no bytes on a wire, but everything else as to a peer, copies included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TypeVar, cast

from google.protobuf.message import Message

from psframework.errors import DeadlineExceeded, PeerLost, PsfError, ResourceExhausted
from psframework.rpc.call import NO_PAYLOAD, Call, Incoming, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.failures import log_failure
from psframework.rpc.security.identity import authorize
from psframework.rpc.service import Handler, MethodTable
from psframework.rpc.session.adapter import gather_parts
from psframework.rpc.session.calls import Answer
from psframework.rpc.session.mourners import Mourners
from psframework.rpc.session.payload import byte_views
from psframework.rpc.session.peer import Peer
from psframework.rpc.status import detail_to_error, error_to_detail
from psframework.wire.device_bytes import Part
from psframework.wire.lanes import Lane
from psframework.wire.memory import Buffer, copy_into, empty

M = TypeVar("M", bound=Message)
CLOSE_SECONDS = 1.0
CANCELLED = "cancelled: the deadline passed, or the caller gave up"


class LocalCall:
    """One call of a process to itself."""

    __slots__ = ("answer", "began", "call", "method", "nbytes", "number", "task", "timer")

    def __init__(self, method: str, answer: Answer, call: Call) -> None:
        self.method = method
        self.answer = answer
        self.call = call
        self.nbytes = sum(call.payload.sizes)
        self.number = 1
        self.began = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Loopback:
    """What a `Peer` is for others, for this process itself.

    Args:
        info: who this process is.
        methods: what may be called.
        backlog_bytes: most bytes of copied arguments at once, as for calls to others.

    Attributes:
        info: who this process is.
        lanes: none.
        lost: why there are no more calls; None until `close`.
        kept: bytes of arguments that were copied for calls that have not ended.
    """

    lanes: frozenset[Lane] = frozenset()

    def __init__(self, info: PeerInfo, methods: MethodTable, backlog_bytes: int) -> None:
        self.info = info
        self.kept = 0
        self._limit = backlog_bytes
        self.lost: PeerLost | None = None
        self._methods = methods
        self._open: set[LocalCall] = set()
        self._mourners = Mourners()

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
        answer: Answer,
    ) -> LocalCall:
        """As `Peer.begin`."""
        if self.lost is not None:
            raise PeerLost(str(self.lost), peer=self.info.name, reason="closed", may_have_run=False)
        if deadline.expired:
            raise DeadlineExceeded(f"the deadline passed before {method} was called")
        found, _ = self._methods.find(method)
        authorize(self.info, found.roles, method)
        payload = self._payload(byte_views(parts)) if parts else NO_PAYLOAD
        call = Call(self.info, deadline, payload, caller=cast(Peer, self))
        local = LocalCall(method, answer, call)
        message = found.request_type.FromString(request.SerializeToString())
        loop = asyncio.get_running_loop()
        work = self._run(local, found.handler, message)
        local.task = loop.create_task(work, context=Context())  # like one that came from elsewhere
        seconds = deadline.seconds()
        if seconds is not None:
            local.timer = loop.call_later(seconds, self._expire, local)
        self._open.add(local)
        self.kept += local.nbytes
        return local

    def abandon(self, local: LocalCall) -> None:
        """As `Peer.abandon`."""
        local.answer.cancel()
        if local.task is not None and local in self._open:
            local.task.cancel()
            if not local.began:  # so it never runs, and tells nobody
                self._fail(local, DeadlineExceeded(CANCELLED))

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """As `Peer.when_lost`."""
        return self._mourners.add(callback)

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
    ) -> tuple[M, list[memoryview]]:
        """As `Peer.call`."""
        answer: asyncio.Future[tuple[M, list[memoryview]]] = asyncio.get_running_loop().create_future()
        local = self.begin(method, request, response_type, parts=parts, deadline=deadline, answer=answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.abandon(local)
            raise

    async def close(self) -> None:
        """Ends all calls, with PeerLost, and waits for their handlers; not long for those that go on."""
        text = f"{self.info.name} ended its connections before it answered itself"
        self.lost = PeerLost(text, peer=self.info.name, reason="closed", may_have_run=True)
        open_calls = list(self._open)
        tasks = [local.task for local in open_calls if local.task is not None]
        for local in open_calls:
            self._fail(local, PeerLost(text, peer=self.info.name, reason="closed", may_have_run=True))
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        self._mourners.tell()

    def _payload(self, views: Sequence[memoryview]) -> Incoming:
        if self.kept and self.kept + sum(map(len, views)) > self._limit:
            raise ResourceExhausted(
                f"{self.kept} bytes of this process's calls to itself are kept, and {self._limit} may: await "
                "some of them before making more",
                retry_after=0.1,
            )
        copies = [memoryview(_copy(view)) for view in views]
        return Incoming([len(copy) for copy in copies], copies)

    async def _run(self, local: LocalCall, handler: Handler, message: Message) -> None:
        call = local.call
        local.began = True
        try:
            response = handler(message, call)
            if not isinstance(response, Message):
                response = await response
            parts = byte_views(await gather_parts(call.reply, len(call.reply_sizes)))
            copies = [memoryview(_copy(part)) for part in parts]
        except asyncio.CancelledError:
            self._fail(local, DeadlineExceeded(CANCELLED))
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            log_failure(local.method, self.info.name, error, 0.0, users=call.started)
            self._fail(local, detail_to_error(error_to_detail(error)))
        else:
            self._end(local)
            if not local.answer.done():
                local.answer.set_result((response, copies))

    def _fail(self, local: LocalCall, error: PsfError) -> None:
        self._end(local)
        if local.call.reply_lost is not None:
            local.call.reply_lost()
        error.untouched = not local.call.started
        if not local.answer.done():
            local.answer.set_exception(error)

    def _end(self, local: LocalCall) -> None:
        if local in self._open:
            self._open.remove(local)
            self.kept -= local.nbytes
        local.task = None
        if local.timer is not None:
            local.timer.cancel()

    def _expire(self, local: LocalCall) -> None:
        if not local.answer.done():
            text = f"{self.info.name} did not answer its own call of {local.method} within its deadline"
            local.answer.set_exception(DeadlineExceeded(text))
        self.abandon(local)


def _copy(view: memoryview) -> Buffer:
    if isinstance(view.obj, bytes):
        return view
    copy = empty(len(view))
    copy_into(copy, view)
    return copy
