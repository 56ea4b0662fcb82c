"""The agent: one per process. Its peers, its services, and the life of both."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

import grpc

from psframework.errors import ArgumentError, ConfigurationError, PeerLost, WireError
from psframework.observe.logs import get_logger
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.identity import check_claim, socket_identity
from psframework.rpc.service import MethodTable, Service
from psframework.rpc.session.accept import Acceptor
from psframework.rpc.session.adapter import unary_handler
from psframework.rpc.session.dial import Dialer, Target
from psframework.rpc.session.frames import Identity
from psframework.rpc.session.peer import Home, Peer
from psframework.rpc.session.refusals import Refusals
from psframework.rpc.session.segments import Segments
from psframework.wire import shm
from psframework.wire.lanes import Lane
from psframework.wire.segment_server import SegmentServer
from psframework.wire.shm import Segment
from psframework.wire.sockets import SocketServer

LOGGER = "psframework.rpc"
REMEMBERED_DEAD = 4096


def _closed(name: str) -> PeerLost:
    return PeerLost(
        f"this process ended its connections before {name} answered",
        peer=name,
        reason="closed",
        may_have_run=False,
    )


class Agent:
    """Calls of one process, made and served. An async context manager; leaving closes every session.

    Args:
        identity: who this process is.
        security: TLS files and token for both sides.
        services: what peers may call; more can be added with `mount` before the server starts.
        options: limits.
    """

    def __init__(
        self,
        identity: PeerInfo,
        *,
        security: Security,
        services: Sequence[Service] = (),
        options: AgentOptions | None = None,
    ) -> None:
        self.identity = identity
        self.options = options or AgentOptions()
        self._security = security
        self._services = list(services)
        self._home = Home(self.options, MethodTable(services), spawn=self.spawn)
        self._peers: list[Peer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._dialers: dict[str, Dialer] = {}
        self._dialing: dict[asyncio.Future[Peer], tuple[str, int]] = {}
        self._dead: deque[tuple[str, int]] = deque(maxlen=REMEMBERED_DEAD)
        self._acceptor = Acceptor(identity, security, self._home, self._new_peer, self._is_fenced)
        self._keys: dict[bytes, Peer] = {}
        self._segment_server: SegmentServer | None = None
        self._socket_server: SocketServer | None = None
        self._refusals = Refusals()
        self._closed = self._ended = False

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Peers with a live session, whoever dialled."""
        return tuple(self._peers)

    @property
    def idle(self) -> bool:
        """Whether nothing runs here for any peer; `ServeOptions.idle` wants to know."""
        return all(peer.idle for peer in self._peers)

    @property
    def closed(self) -> bool:
        """Whether the agent was closed, or is closing."""
        return self._closed

    @property
    def segment_path(self) -> str:
        """The socket at which this process takes shared memory; "" if it takes none."""
        return self._home.segment_path

    @property
    def methods(self) -> MethodTable:
        """What peers may call."""
        return self._home.methods

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` as a task that ends with the agent, at the latest.

        It begins in any case, so that it can tell whoever waits for it.
        """
        if self._ended:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def mount(self, service: Service) -> None:
        """Adds a service; ArgumentError if one of its paths is taken."""
        self._home.methods.add(service)
        self._services.append(service)

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Handlers for a grpc.aio server: the call stream, and every service as unary methods."""
        unary = [unary_handler(service, self._security) for service in self._services]
        return [self._acceptor.handler(), *unary]

    def peer_for(self, name: str, incarnation: int | None = None) -> Peer | None:
        """A live peer of that name (and incarnation), whoever dialled; None if there is no session."""
        for peer in reversed(self._peers):
            if peer.info.name == name and incarnation in (None, peer.info.incarnation):
                return peer
        return None

    def trouble(self, name: str) -> str:
        """Why the last attempt to dial a member failed, while it is being dialled; else empty."""
        dialer = self._dialers.get(name)
        return dialer.trouble if dialer is not None else ""

    async def connect(
        self,
        addresses: Sequence[str],
        *,
        name: str,
        role: str,
        incarnation: int | None = None,
        deadline: Deadline,
    ) -> Peer:
        """Returns the peer, dialling it if there is no session with it yet.

        Args:
            addresses: HOST:PORT, tried in this order, again and again until the deadline.
            name: the member's name.
            role: its role, which its certificate must show.
            incarnation: which life of it; None for whichever answers.
            deadline: when to give up.

        Raises:
            PeerLost: nobody answered, another incarnation did, or this one is known to be dead.
            PermissionDenied: certificate, role or token were refused.
            WireError: whoever answers does not speak the protocol.
        """
        if self._closed:
            raise ArgumentError("the agent is closed")
        target = Target(tuple(addresses), Identity(name=name, role=role, incarnation=incarnation or 0))
        async with self._one_at_a_time(name, deadline):
            if incarnation is not None and self._is_fenced(name, incarnation):  # perhaps while it waited
                raise PeerLost(f"{name} was declared dead", peer=name, reason="lease", may_have_run=False)
            peer = self.peer_for(name, incarnation)
            if peer is not None and peer.info.role == role:
                return peer
            peer = await self._dial(target, deadline)
            if self._is_fenced(name, peer.info.incarnation):
                peer.fail("lease", f"{name} (incarnation {peer.info.incarnation}) was declared dead")
                raise PeerLost(f"{name} was declared dead", peer=name, reason="lease", may_have_run=False)
            await peer.prove_shared_memory()
            if peer.segments.proved:
                await peer.shorten()
            else:
                self.spawn(peer.shorten())
            return peer

    def listen(self, host: str, ports: Sequence[int] = (0,)) -> None:
        """Takes TCP sockets too, so that sessions need not carry everything through gRPC.

        Args:
            host: where the server listens too.
            ports: the first free one of these is taken. None free: the log says so, and all stays with gRPC.
        """
        if not self.options.sockets or self._socket_server is not None:
            return
        server = SocketServer(
            self._take_socket,
            lambda: self._security.socket_context(server_side=True),
            on_refused=self._refusals.record,
        )
        try:
            server.listen(host, ports)
        except ConfigurationError as error:
            server.stop()
            get_logger(LOGGER).info(
                "peers of other hosts stay with gRPC, which is slower",
                reason=str(error),
                fix="a second free port, as in --port-range",
            )
            return
        for key in self._keys:
            server.expect(key)
        self._socket_server = server
        self._home.socket_port = server.port

    def lost(self, name: str, incarnation: int, reason: str = "lease") -> None:
        """Membership says that this life of a member is over: its calls fail now, and it may not return."""
        self._dead.append((name, incarnation))
        text = f"{name} (incarnation {incarnation}) was declared dead: {reason}"
        for peer in list(self._peers):
            if (peer.info.name, peer.info.incarnation) == (name, incarnation):
                peer.fail(reason, text)
        self._end_dialing(
            name, incarnation, lambda: PeerLost(text, peer=name, reason=reason, may_have_run=False)
        )

    def stalled(self, name: str, incarnation: int, still: Callable[[], bool]) -> None:
        """Membership says that a member's loop does not turn: nobody shall wait for it.

        Calls to it end now, and those made while `still` is true end at once, with PeerLost("stalled"). It
        keeps its sessions and its incarnation, since it may come back.
        """
        text = f"{name} (incarnation {incarnation}) is stalled: its event loop has not turned for long"

        def error() -> PeerLost:
            return PeerLost(text, peer=name, reason="stalled", may_have_run=False)

        for peer in list(self._peers):
            if (peer.info.name, peer.info.incarnation) == (name, incarnation):
                peer.stall(lambda: error() if still() else None)
        self._end_dialing(name, incarnation, error)

    def drain(self) -> None:
        """The process is about to end: takes no new session, while the calls that run come to their end."""
        self._acceptor.drain()

    async def close(self) -> None:
        """Ends all sessions in order; calls that are still open end with PeerLost."""
        self._closed = True
        self._acceptor.close()
        try:
            await asyncio.gather(*(peer.close() for peer in list(self._peers)))
            await asyncio.sleep(0)  # a task that is cancelled before its first step never runs at all
        finally:  # even if nobody waits any more
            self._stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._segment_server is not None:
            await self._segment_server.__aexit__(None, None, None)
        if self._socket_server is not None:
            await self._socket_server.close()

    def _stop(self) -> None:
        self._ended = True
        for task in self._tasks:
            task.cancel()
        for server in (self._segment_server, self._socket_server):
            if server is not None:
                server.stop()
        self._refusals.flush()

    async def __aenter__(self) -> Self:
        if Lane.SHM in self.options.lanes and shm.available():
            server = SegmentServer(
                self.options.segment_directory, self._receive_segment, on_socket=self._receive_socket
            )
            try:
                self._segment_server = await server.__aenter__()
                self._home.segment_path = server.path
            except ConfigurationError as error:
                get_logger(LOGGER).warning("no shared memory with peers", reason=str(error))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _one_at_a_time(self, name: str, deadline: Deadline) -> AsyncIterator[None]:
        lock = self._opening.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(deadline.seconds()):
                await lock.acquire()
        except TimeoutError:
            text = f"can't reach {name}: an attempt that began before is still under way"
            raise PeerLost(text, peer=name, reason="closed", may_have_run=False) from None
        try:
            yield
        finally:
            lock.release()

    async def _dial(self, target: Target, deadline: Deadline) -> Peer:
        if self._closed:  # while it waited for its turn
            raise _closed(target.expected.name)
        dialer = Dialer(target, self.identity, self._security, self._home, self._new_peer)
        self._dialers[target.expected.name] = dialer
        opened: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(dialer.run(opened, deadline), name=f"psf-session-{target.expected.name}")
        self._tasks.add(task)

        def ended(_: object) -> None:  # perhaps cancelled, even before its first step
            self._tasks.discard(task)
            if not opened.done():
                opened.set_exception(_closed(target.expected.name))

        task.add_done_callback(ended)
        self._dialing[opened] = target.expected.name, target.expected.incarnation
        try:
            return await opened
        except BaseException:  # nobody takes the session any more
            task.cancel()
            raise
        finally:
            del self._dialing[opened], self._dialers[target.expected.name]

    def _end_dialing(self, name: str, incarnation: int, error: Callable[[], PeerLost]) -> None:
        for opened, expected in self._dialing.items():
            if expected == (name, incarnation) and not opened.done():
                opened.set_exception(error())

    def _new_peer(self, info: PeerInfo, segments: Segments) -> Peer:
        peer = Peer(info, self._home, segments, self._forget)
        self._peers.append(peer)
        self._keys[segments.key] = peer
        for server in (self._segment_server, self._socket_server):
            if server is not None:
                server.expect(segments.key)
        return peer

    def _receive_segment(self, key: bytes, number: int, segment: Segment) -> None:
        self._session(key).receive_segment(number, segment)

    def _receive_socket(self, key: bytes, number: int, sock: socket.socket) -> None:
        self._session(key).receive_socket(number, sock)

    def _take_socket(self, key: bytes, number: int, sock: socket.socket) -> Callable[[socket.socket], None]:
        peer = self._session(key)
        check_claim(socket_identity(sock), peer.info.role, peer.info.name)
        return peer.accept_socket(number)

    def _session(self, key: bytes) -> Peer:
        peer = self._keys.get(key)
        if peer is None:
            raise WireError("no session with this key")
        return peer

    def _forget(self, peer: Peer) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
        self._acceptor.forget(peer)
        self._keys.pop(peer.segments.key, None)
        for server in (self._segment_server, self._socket_server):
            if server is not None:
                server.forget(peer.segments.key)

    def _is_fenced(self, name: str, incarnation: int) -> bool:
        return (name, incarnation) in self._dead
