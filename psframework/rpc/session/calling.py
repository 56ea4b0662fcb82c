"""The calling half of a peer: calls that wait for their reply, and calls that are sent at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message

from psframework.errors import ArgumentError, DeadlineExceeded, PeerLost, PsfError, ResourceExhausted
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.service import MethodTable
from psframework.rpc.session import frames
from psframework.rpc.session.bulk import Bulk
from psframework.rpc.session.calls import CALL_BYTES, Answer, Calls, OnPart, Pending
from psframework.rpc.session.payload import NOTHING, Outgoing, Sender, part_views
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.stream import Port
from psframework.wire.device_bytes import DeviceBytes, Part
from psframework.wire.lanes import Lane
from psframework.wire.memory import BufferPool

M = TypeVar("M", bound=Message)


def _refuse_work(work: Coroutine[Any, Any, None]) -> None:
    work.close()  # only an open agent has tasks


@dataclass(slots=True)
class Home:
    """What all peers of one agent share.

    Args:
        options: this side's limits.
        methods: what peers may call here.
        pool: receive buffers.
        segment_path: socket at which this process takes segments; "" if it takes none.
        socket_port: TCP port at which it takes sockets of sessions; 0 if it takes none.
        spawn: starts work that the agent owns and ends.
    """

    options: AgentOptions
    methods: MethodTable
    pool: BufferPool = field(default_factory=BufferPool)
    segment_path: str = ""
    socket_port: int = 0
    spawn: Callable[[Coroutine[Any, Any, None]], None] = _refuse_work


class Calling:
    """What a `Peer` needs for calls to the other end.

    Args:
        info: who it is.
        home: what this agent's peers share.
        segments: the session's shared memory.
        port: the way out.
        bulk: the striped lane.
    """

    def __init__(self, info: PeerInfo, home: Home, segments: Segments, port: Port, bulk: Bulk) -> None:
        self.info = info
        self.segments = segments
        self.bulk = bulk
        self._home = home
        self._port = port
        self._sender = Sender(port, segments, home.pool)
        limit = home.options.max_payload_bytes
        self._calls = Calls(port, bulk, segments, self._sender, peer=info.name, max_payload=limit)
        self._lost: PeerLost | None = None
        self._stalled: Callable[[], PeerLost | None] | None = None
        self._preparing = False

    @property
    def kept(self) -> int:
        """Bytes that calls sent by `call_nowait` keep here until they are answered."""
        return self._calls.kept

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
        on_part: OnPart | None = None,
    ) -> tuple[M, list[memoryview]]:
        """Calls a method of the peer.

        Args:
            method: "/service/method".
            request: the request message, without its bulk payload.
            response_type: generated class of the response.
            parts: bulk payload; must not change until the call is over.
            deadline: when to give up; it travels with the call.
            on_part: takes (index, view) of each part of the reply as it comes; the view is valid in it only.

        Returns:
            The response, and the parts of its payload (none of them if `on_part` took them).

        Raises:
            DeadlineExceeded: the deadline passed; the peer was told to stop.
            PeerLost: the peer died; `.may_have_run` is False if the call surely did not start.
            PsfError: what the handler raised: its own class if it is one of ours, else RemoteError.
        """
        header = self._header(method, request, deadline)
        payload = await self._outgoing(parts, deadline) if parts else NOTHING
        self._check_living(payload)
        pending = Pending(method, response_type, payload, on_part)
        self._calls.start(pending, header, deadline)
        try:
            return await pending.future  # type: ignore[no-any-return,misc]
        except asyncio.CancelledError:
            self._calls.cancel(pending)
            raise

    def call_nowait(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
    ) -> asyncio.Future[tuple[M, list[memoryview]]]:
        """As `call`, but sends before it returns: the request and its parts may be changed right away.

        Calls to one peer leave in the order in which they were made. What the window has no room for leaves
        later, in its turn. The parts are copied once, by this thread, so a call blocks the loop for as long
        as that copy takes (about 0.1 ms a MiB): into shared memory where there is room, else into private
        memory. What waits here for its reply is bounded by `AgentOptions.backlog_bytes`.

        Returns:
            A future with what `call` returns, or raises. Cancelling it cancels the call.

        Raises:
            ArgumentError: a request or parts that can't be sent.
        """
        future: asyncio.Future[tuple[M, list[memoryview]]] = asyncio.get_running_loop().create_future()
        try:
            pending = self.begin(
                method, request, response_type, parts=parts, deadline=deadline, answer=future
            )
        except ArgumentError:
            raise
        except PsfError as error:
            future.set_exception(error)
        else:
            future.add_done_callback(lambda done: self.abandon(pending) if done.cancelled() else None)
        return future

    def begin(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
        answer: Answer,
    ) -> Pending:
        """What `call_nowait` does, for callers that take the outcome themselves.

        Args:
            method, request, response_type, parts, deadline: as for `call`.
            answer: gets (response, parts), or the error.

        Returns:
            What `abandon` needs.

        Raises:
            ResourceExhausted: too much waits for replies of this peer already.
            DeadlineExceeded, PeerLost, ArgumentError: nothing was sent.
        """
        header = self._header(method, request, deadline)
        kept = CALL_BYTES + len(header)
        views = part_views(parts) if parts else ()
        limit = self._home.options.backlog_bytes
        nbytes = sum(map(len, views))
        if self._calls.kept and self._calls.kept + kept + nbytes > limit:
            raise ResourceExhausted(
                f"{self._calls.kept} bytes of calls wait for {self.info.name}, and {limit} may: await "
                "some of them before making more",
                retry_after=0.1,
            )
        payload = self._copied(views, nbytes) if views else NOTHING
        pending = Pending(method, response_type, payload, None, answer)
        pending.kept = kept if payload.lane in frames.PLACED else kept + nbytes
        self._calls.start(pending, header, deadline)
        return pending

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for a call any more: the peer is told to stop. Harmless after its end."""
        self._calls.cancel(pending)

    def stall(self, stalled: Callable[[], PeerLost | None]) -> None:
        """The peer's loop does not turn: calls to it end, and later ones at once, while `stalled` says so.

        The session lives on: whatever it asked of this process goes on, and it may come back.
        """
        self._stalled = stalled
        error = stalled()
        if error is not None:
            self._calls.give_up(error.reason, str(error))

    def _header(self, method: str, request: Message, deadline: Deadline) -> bytes:
        self._check_living()
        if deadline.expired:
            raise DeadlineExceeded(f"the deadline passed before {method} was called")
        header = request.SerializeToString()
        if len(header) > frames.MAX_HEADER:
            raise ArgumentError(f"a request of {len(header)} bytes: pass bulk data as parts")
        return header

    def _copied(self, views: Sequence[memoryview | DeviceBytes], nbytes: int) -> Outgoing:
        payload = self._sender.copy(views)
        if payload.lane == frames.STRIPED and Lane.SHM in self._port.lanes and not self._preparing:
            self._preparing = True
            self._home.spawn(self._prepare(nbytes))
        return payload

    async def _prepare(self, nbytes: int) -> None:
        try:
            await self.segments.prepare(nbytes)
        finally:
            self._preparing = False

    async def _outgoing(self, parts: Sequence[Part], deadline: Deadline) -> Outgoing:
        try:
            async with asyncio.timeout(deadline.seconds()):
                return await self._sender.choose(part_views(parts))
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while the payload was copied") from None

    def _check_living(self, payload: Outgoing = NOTHING) -> None:
        """Raises PeerLost, and gives `payload` back, if the session has ended, or nobody would answer now."""
        if self._lost is not None:
            payload.free()
            raise self._lost_again()
        if self._stalled is not None:
            error = self._stalled()
            if error is not None:
                payload.free()
                raise error
            self._stalled = None

    def _lost_again(self) -> PeerLost:
        reason = self._lost.reason if self._lost else ""
        return PeerLost(str(self._lost), peer=self.info.name, reason=reason, may_have_run=False)
