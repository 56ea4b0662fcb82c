"""One other member, as this process sees it: calls to it, calls from it, over one session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator, Sequence

from psframework.errors import ConfigurationError, PeerLost, PsfError, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.room import Room
from psframework.rpc.session import frames, handshake, sockets
from psframework.rpc.session.bulk import Bulk
from psframework.rpc.session.calling import Calling, Home
from psframework.rpc.session.dispatch import Dispatcher
from psframework.rpc.session.frames import Frame, LinkState
from psframework.rpc.session.mourners import Mourners
from psframework.rpc.session.replies import Replies
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.session import Session
from psframework.rpc.session.sockets import Sockets
from psframework.rpc.session.stream import EARLY, ByteStream, Link, Port
from psframework.rpc.session.transfer import Key
from psframework.wire.lanes import Lane, LaneStats
from psframework.wire.shm import Segment

__all__ = ["Home", "Peer"]

log = logging.getLogger("psframework.rpc")

GOODBYE_SECONDS = 0.5


class Peer(Calling):
    """Calls to one life of one member. Made by `Agent.connect`, or when the other side dialled.

    Args:
        info: who it is.
        home: what this agent's peers share.
        segments: the session's shared memory.
        on_lost: called once when the session has ended for good.

    Attributes:
        info: who it is.
        room: what replies to it hold here.
    """

    def __init__(
        self, info: PeerInfo, home: Home, segments: Segments, on_lost: Callable[[Peer], None]
    ) -> None:
        limit = home.options.max_payload_bytes
        port = Port(Session(own_window=home.options.window_bytes))
        bulk = Bulk(self._may_come, limit, home.pool)
        super().__init__(info, home, segments, port, bulk)
        self.room = Room(info.name, home.options.window_bytes, home.options.backlog_bytes)
        self._on_lost = on_lost
        self._dispatcher = Dispatcher(
            port,
            bulk,
            segments,
            Replies(port, bulk, self._sender),
            methods=home.methods,
            peer=self,
            max_payload=limit,
        )
        segments.devices.bind(port.post, home.spawn)
        self._mourners = Mourners()
        self._closing = False
        self._sockets: Sockets | None = None
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        state = "lost" if self._lost else "connected" if self._port.link else "reconnecting"
        return f"<Peer {self.info.name} ({self.info.role}) incarnation {self.info.incarnation}, {state}>"

    @property
    def lanes(self) -> frozenset[Lane]:
        """The lanes that payloads to this peer may take."""
        return self._port.lanes

    @property
    def stats(self) -> LaneStats:
        """Payload traffic with this peer, by lane."""
        return self._port.stats

    @property
    def lost(self) -> PeerLost | None:
        """Why the session has ended; None while it lives."""
        return self._lost

    @property
    def idle(self) -> bool:
        """Whether no handler runs for this peer and no reply is on its way."""
        port = self._port
        waits = port.is_waiting or port.session.has_unsent
        return not len(self._dispatcher) and not waits and self.bulk.is_idle

    def statistics(self) -> dict[str, int]:
        """Numbers for logs and leak tests: calls made and served that are open, and frames kept."""
        return {"made": len(self._calls), "served": len(self._dispatcher), "kept": self._port.session.kept}

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` when the session has ended for good; returns what takes that back."""
        return self._mourners.add(callback)

    async def share(self, segment: Segment) -> int:
        """Hands a shared segment to the peer; returns the id under which its handlers find it.

        The segment stays shared until `unshare`, or the end of the session; also over broken connections.

        Raises:
            ConfigurationError: the shared-memory lane was not agreed on.
            PeerLost, PermissionDenied, ResourceExhausted, WireError, DeadlineExceeded: the peer refused it.
        """
        self._check_living()
        if Lane.SHM not in self._port.agreed:
            raise ConfigurationError(f"no shared memory with {self.info.name}: another host, or not allowed")
        return await self.segments.share(segment)

    def unshare(self, number: int) -> None:
        """The peer may let go of a segment that was shared; calls must not name it any more."""
        if self._lost is None:
            self._port.post(Frame(kind=frames.UNSHARE, segment=number))  # type: ignore[arg-type]

    async def close(self) -> None:
        """Ends the session in order: the other side learns at once; calls still open end with PeerLost."""
        if self._lost is None:
            self._closing = True
            self._port.post(Frame(kind=frames.GOODBYE))  # type: ignore[arg-type]
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS if self._port.link else 0):
                        await self._ended.wait()
            finally:  # even if nobody waits any more
                self.fail("closed", f"the connection to {self.info.name} was closed here")

    # For the agent

    def state(self) -> LinkState:
        """What the other side must know of this one when a connection begins."""
        home = self._home
        state = handshake.link_state(home.options, home.segment_path, self.segments.key, home.socket_port)
        session = self._port.session
        state.received, state.consumed, state.consumed_replies = session.report()
        state.transfers.extend(self.bulk.states())
        return state

    def attach(
        self, state: LinkState, link: Link, open_stripes: Callable[[], None], sockets: Sockets | None = None
    ) -> None:
        """A connection begins; replaces the one before it. WireError if the two ends do not fit together.

        Args:
            state: what the other end said.
            link: the connection.
            open_stripes: has the striped lane's streams opened.
            sockets: the connection's own, where this side may open some.
        """
        self.detach(self._port.link)
        self._sockets = sockets
        port = self._port
        port.session.set_window(state.window)
        port.session.resume(state.received)
        self.bulk.resume(state.transfers, state.received)
        self._agree(state)
        port.attach(link)
        self.bulk.attach(open_stripes)
        port.requests.give_back(state.consumed)
        port.replies.give_back(state.consumed_replies)
        if port.session.owes_report:  # consumed since this end told its state
            link.report_soon()

    def detach(self, link: Link | None) -> bool:
        """A connection has ended. Returns whether it was the one in use."""
        if link is None or self._port.link is not link:
            return False
        link.close()
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None
        self.bulk.detach()
        self._port.attach(None)
        if self._closing:
            self._ended.set()
        return True

    def new_link(self, stream: ByteStream, number: int) -> Link:
        """A link over an open stream, for `attach`; `number` counts the connections of the session."""
        return Link(stream, self._port, self.receive, number)

    async def prove_shared_memory(self) -> None:
        """Finds out whether both ends are on one host, if both offered the lane."""
        if Lane.SHM in self._port.agreed and await self.segments.prove():
            self._port.lanes = self._port.agreed

    async def shorten(self) -> None:
        """Moves what the connection of the moment carries from gRPC to a socket, where that can be.

        To a Unix socket if both ends are on one host, else to one of TCP.
        """
        link = self._port.link
        if self.segments.proved and link is not None:
            await self._shorten_here(link)
        elif self._sockets is not None:
            await self._sockets.shorten()

    async def _shorten_here(self, link: Link) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self.segments.offer_socket(link.number, theirs)
        except PsfError as error:
            log.debug("the connection to %s stays with gRPC alone: %s", self.info.name, error)
            ours.close()
        except BaseException:
            ours.close()
            raise
        else:
            link.shorten(ours)

    def receive_socket(self, number: int, sock: socket.socket) -> None:
        """The peer handed a socket over for connection `number`. WireError refuses it."""
        link = self._port.link
        if Lane.SHM not in self._port.agreed or link is None or link.number != number:
            raise WireError(f"connection {number} takes no socket")
        link.shorten(sock)

    def accept_socket(self, number: int) -> Callable[[socket.socket], None]:
        """The peer has opened a TCP socket; returns what takes it over. WireError refuses it."""
        link = self._port.link
        connection, stripe = sockets.read_number(number)
        if link is None or link.number != connection:
            raise WireError(f"connection {connection} takes no socket")
        if not stripe:
            return link.shorten
        return lambda sock: self._home.spawn(self.run_socket(sock, link))

    async def run_socket(self, sock: socket.socket, link: Link) -> None:
        """Moves chunks over a socket until it ends, and the connection with it: some may be lost."""
        if self._port.link is not link:  # another has begun meanwhile, and must not lose chunks in this one
            sock.close()
            return
        try:
            error = await self.bulk.run_socket(sock)
            if isinstance(error, WireError):
                self.fail("refused", f"{self.info.name} broke the protocol: {error}")
        finally:
            link.close()

    def receive_segment(self, number: int, segment: Segment) -> None:
        """The peer handed a segment over. WireError refuses it."""
        if Lane.SHM not in self._port.agreed:
            raise WireError("the shared-memory lane was not agreed on")
        self.segments.receive(number, segment)
        self._port.lanes = self._port.agreed

    def ask_for_stripes(self) -> None:
        """Only the side that dialled can open streams."""
        self._port.post(Frame(kind=frames.OPEN_STRIPES))  # type: ignore[arg-type]

    def receive(self, data: bytes) -> Generator[None]:
        """Takes one message, `EARLY` frames at a time; it yields between them.

        What is not taken because the connection ends meanwhile is not acknowledged, so it comes again.

        Raises:
            WireError: it can't be right; the session is then given up.
        """
        try:
            batch = frames.decode_batch(data)
            port = self._port
            port.session.acknowledge(batch.acknowledged)
            port.requests.give_back(batch.consumed)
            port.replies.give_back(batch.consumed_replies)
            first, incoming = batch.first, batch.frames
            count = len(incoming)
            port.alone = count == 1
            self._take(first, incoming[:EARLY])
            for start in range(EARLY, count, EARLY):
                yield
                if self._lost is not None:
                    return
                self._take(first + start, incoming[start : start + EARLY])
            if batch.moves and port.link is not None:
                port.link.expect_shortcut()
        except (WireError, GeneratorExit):
            raise
        except BaseException as error:  # a fault here: what followed in the message would never be answered
            self.fail("closed", f"a message of {self.info.name} could not be taken: {error!r}")
            raise

    def _take(self, first: int, incoming: Sequence[Frame]) -> None:
        skip = self._port.session.accept(first, len(incoming))
        for frame in incoming[skip:] if skip else incoming:
            kind = frame.kind
            if kind == frames.REQUEST:
                self._dispatcher.request(frame)
            elif kind == frames.REPLY:
                self._calls.reply(frame)
            else:
                self._control(kind, frame)
            if self._lost is not None:
                return

    def fail(self, reason: str, message: str) -> None:
        """The session has ended for good: all that waits ends with PeerLost. Later calls too."""
        if self._lost is not None:
            return
        self._lost = PeerLost(message, peer=self.info.name, reason=reason, may_have_run=False)
        self.detach(self._port.link)
        self._calls.fail(reason, message)
        self._dispatcher.close(self._lost_again())
        self.bulk.close()
        self.segments.close()
        self._ended.set()
        self._on_lost(self)
        self._mourners.tell()

    def _agree(self, state: LinkState) -> None:
        port, options = self._port, self._home.options
        port.agreed = handshake.lanes_of(state) & (options.lanes | {Lane.INLINE})
        if not (self._home.segment_path and state.segment_path):
            port.agreed -= {Lane.SHM}
        if Lane.SHM not in port.agreed:
            port.agreed -= {Lane.DEVICE}
        port.lanes = port.agreed if self.segments.proved else port.agreed - {Lane.SHM, Lane.DEVICE}
        self.segments.set_other(state.segment_path if Lane.SHM in port.agreed else "", state.segment_key)

    def _may_come(self, key: Key) -> bool:
        call, reply = key
        return self._calls.awaits(call) if reply else call > self._dispatcher.last

    def _control(self, kind: int, frame: Frame) -> None:
        if kind == frames.CANCEL:
            self._dispatcher.cancel(frame.call)
        elif kind == frames.RELEASE:
            self._dispatcher.release(frame.call)
        elif kind == frames.FREE:
            self._calls.free(frame.call)
        elif kind == frames.ABORT:
            self._calls.abort(frame)
        elif kind == frames.UNSHARE:
            self.segments.drop(frame.segment)
        elif kind == frames.OPEN_STRIPES:
            self.bulk.open_stripes()
        elif kind == frames.OFFER_DEVICE:
            if Lane.DEVICE not in self._port.agreed:
                raise WireError("the device lane was not agreed on")
            self.segments.devices.offered(frame)
        elif kind == frames.ANSWER_DEVICE:
            self.segments.devices.answered(frame)
        elif kind == frames.GOODBYE:
            self.fail("closed", f"{self.info.name} closed the connection")
        else:
            raise WireError(f"a frame of unknown kind {kind}")
