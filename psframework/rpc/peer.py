"""One other member, as this process sees it: calls to it, calls from it, over one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from psframework.errors import ArgumentError, DeadlineExceeded, PeerLost, WireError
from psframework.rpc import frames, handshake
from psframework.rpc.call import PeerInfo
from psframework.rpc.calls import NOTHING, Calls, OnPart, Outgoing, Pending
from psframework.rpc.deadline import Deadline
from psframework.rpc.dispatch import Dispatcher
from psframework.rpc.frames import Frame, LinkState
from psframework.rpc.limits import AgentOptions
from psframework.rpc.service import MethodTable
from psframework.rpc.session import Session
from psframework.rpc.stream import Link, Port
from psframework.wire.lanes import Lane, LaneStats
from psframework.wire.memory import Buffer
from psframework.wire.shm import Segment

M = TypeVar("M", bound=Message)
GOODBYE_SECONDS = 0.5


class Peer:
    """Calls to one life of one member. Made by `Agent.connect`, or when the other side dialled.

    Args:
        info: who it is.
        methods: what it may call here.
        options: this side's limits.
        on_lost: called once when the session has ended for good.

    Attributes:
        info: who it is.
    """

    def __init__(
        self, info: PeerInfo, methods: MethodTable, options: AgentOptions, on_lost: Callable[[Peer], None]
    ) -> None:
        self.info = info
        self._options = options
        self._on_lost = on_lost
        self._port = Port(Session())
        self._calls = Calls(self._port, info.name, options.max_payload_bytes)
        self._dispatcher = Dispatcher(self._port, methods, self, options.max_payload_bytes)
        self._lost: PeerLost | None = None
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        state = "lost" if self._lost else "connected" if self._port.link else "reconnecting"
        return f"<Peer {self.info.name} ({self.info.role}) incarnation {self.info.incarnation}, {state}>"

    @property
    def lanes(self) -> frozenset[Lane]:
        """The lanes that both ends agreed on."""
        return self._port.lanes

    @property
    def stats(self) -> LaneStats:
        """Payload traffic with this peer, by lane."""
        return self._port.stats

    @property
    def lost(self) -> PeerLost | None:
        """Why the session has ended; None while it lives."""
        return self._lost

    def statistics(self) -> dict[str, int]:
        """Numbers for logs and leak tests: calls made and served that are open, and frames kept."""
        return {"made": len(self._calls), "served": len(self._dispatcher), "kept": self._port.session.kept}

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        parts: Sequence[Buffer] = (),
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
        pending = self._start(method, request, response_type, parts, deadline, on_part)
        try:
            return await pending.future  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self._calls.cancel(pending)
            raise

    async def close(self) -> None:
        """Ends the session in order: the other side learns at once; calls still open end with PeerLost."""
        if self._lost is None:
            self._port.post(Frame(kind=frames.GOODBYE))  # type: ignore[arg-type]
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                pass
            self.fail("closed", f"the connection to {self.info.name} was closed here")

    def segment(self, segment_id: int) -> Segment:
        """The segment that the peer shared under this id; WireError if it did not."""
        raise WireError(f"{self.info.name} shared no segment {segment_id}")

    # For the agent

    def state(self) -> LinkState:
        """What the other side must know of this one when a connection begins."""
        session = self._port.session
        return handshake.link_state(self._options, received=session.received, consumed=session.consumed)

    def attach(self, state: LinkState, link: Link) -> None:
        """A connection begins; replaces the one before it. WireError if the two ends do not fit together."""
        self.detach(self._port.link)
        session = self._port.session
        session.set_window(state.window)
        session.resume(state.received, state.consumed)
        self._port.attach(link)

    def detach(self, link: Link | None) -> bool:
        """A connection has ended. Returns whether it was the one in use."""
        if link is None or self._port.link is not link:
            return False
        link.close()
        self._port.attach(None)
        return True

    def new_link(self, stream: object) -> Link:
        """A link over an open stream, for `attach`."""
        return Link(stream, self._port, self.receive)  # type: ignore[arg-type]

    def receive(self, data: bytes) -> None:
        """Takes one message. WireError if it can't be right: the connection is then given up."""
        batch = frames.decode_batch(data)
        session = self._port.session
        session.acknowledge(batch.acknowledged)
        self._port.give_back(batch.consumed)
        incoming = batch.frames
        skip = session.accept(batch.first, len(incoming))
        for frame in incoming[skip:] if skip else incoming:
            kind = frame.kind
            if kind == frames.REQUEST:
                self._dispatcher.request(frame)
            elif kind == frames.REPLY:
                self._calls.reply(frame)
            else:
                self._control(kind, frame)

    def fail(self, reason: str, message: str) -> None:
        """The session has ended for good: all that waits ends with PeerLost. Later calls too."""
        if self._lost is not None:
            return
        self._lost = PeerLost(message, peer=self.info.name, reason=reason, may_have_run=False)
        self.detach(self._port.link)
        self._calls.fail(reason, message)
        self._dispatcher.close()
        self._ended.set()
        self._on_lost(self)

    def _start(
        self,
        method: str,
        request: Message,
        response_type: type[Message],
        parts: Sequence[Buffer],
        deadline: Deadline,
        on_part: OnPart | None,
    ) -> Pending:
        if self._lost is not None:
            raise PeerLost(str(self._lost), peer=self.info.name, reason=self._lost.reason, may_have_run=False)
        if deadline.expired:
            raise DeadlineExceeded(f"the deadline passed before {method} was called")
        header = request.SerializeToString()
        if len(header) > frames.MAX_MESSAGE // 2:
            raise ArgumentError(f"a request of {len(header)} bytes: pass bulk data as parts")
        payload = Outgoing(frames.INLINE, [memoryview(p).nbytes for p in parts], parts) if parts else NOTHING
        return self._calls.start(
            method, header, response_type, payload=payload, deadline=deadline, on_part=on_part
        )

    def _control(self, kind: int, frame: Frame) -> None:
        if kind == frames.CANCEL:
            self._dispatcher.cancel(frame.call)
        elif kind == frames.GOODBYE:
            self.fail("closed", f"{self.info.name} closed the connection")
        else:
            raise WireError(f"a frame of unknown kind {kind}")
