"""The side that is dialled: the CallService servicer, which finds or makes the session of each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from psframework.errors import Evicted, PeerLost, PermissionDenied, PsfError, WireError
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import PeerInfo
from psframework.rpc.security import audit
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.identity import check_claim, identity
from psframework.rpc.session import handshake
from psframework.rpc.session.frames import Hello, Identity, Welcome
from psframework.rpc.session.peer import Home, Peer
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.stream import Link
from psframework.rpc.status import abort
from psframework.wire import codec

SERVICE = "psframework.proto.v1.CallService"
GRACE_SECONDS = 0.5  # longer than the dialler tries, so that it never resumes into nothing


class Accepted:
    """A session that another side opened."""

    __slots__ = ("connection", "expiry", "peer")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.connection = 0
        self.expiry: asyncio.TimerHandle | None = None


class Acceptor:
    """Accepts call streams for an agent.

    Args:
        local: who this process is.
        security: checks tokens.
        home: what all peers share; a broken session is kept for `resume_seconds` and a little.
        make_peer: makes the Peer of a new session.
        is_fenced: whether that life of a member was declared dead.
    """

    def __init__(
        self,
        local: PeerInfo,
        security: Security,
        home: Home,
        make_peer: Callable[[PeerInfo, Segments], Peer],
        is_fenced: Callable[[str, int], bool],
    ) -> None:
        self._local = local
        self._security = security
        self._home = home
        self._options = home.options
        self._make_peer = make_peer
        self._is_fenced = is_fenced
        self._sessions: dict[bytes, Accepted] = {}
        self._open = True

    def handler(self) -> grpc.GenericRpcHandler:
        """The generic handler to add to a server; bytes go through unparsed."""
        methods: dict[str, Any] = {
            "Connect": grpc.stream_stream_rpc_method_handler(self.connect),
            "Stripe": grpc.stream_stream_rpc_method_handler(self.stripe),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def drain(self) -> None:
        """Accepts no new session; those that are open may still resume."""
        self._open = False

    def close(self) -> None:
        """Accepts nothing more; sessions end by closing their peers."""
        self.drain()
        for session in self._sessions.values():
            if session.expiry is not None:
                session.expiry.cancel()

    def forget(self, peer: Peer) -> None:
        """The session of `peer` has ended."""
        for key, session in list(self._sessions.items()):
            if session.peer is peer:
                del self._sessions[key]
                if session.expiry is not None:
                    session.expiry.cancel()

    async def connect(self, _: object, context: Any) -> None:
        """CallService.Connect: serves one connection to its end."""
        try:
            hello = await self._hello(context)
            session = self._session(hello, context)
            link = self._attach(session, hello, context)
            welcome = Welcome(sender=handshake.identity_of(self._local), state=session.peer.state())
        except PsfError as error:
            await context.write(handshake.refusal(error))
            return
        try:
            await context.write(handshake.welcome_message(welcome))
            await self._serve(session.peer, link, context)
        finally:
            if session.peer.detach(link) and session.peer.lost is None:
                self._expect_resume(session)

    async def stripe(self, _: object, context: Any) -> None:
        """CallService.Stripe: serves one stream of the striped lane to its end."""
        try:
            session = await self._stripe_session(context)
        except PsfError as refused:
            await abort(context, refused)
        error = await session.peer.bulk.run_stripe(context)
        if isinstance(error, WireError):
            session.peer.fail("refused", f"{session.peer.info.name} broke the protocol: {error}")
            await abort(context, error)

    async def _stripe_session(self, context: Any) -> Accepted:
        self._security.check_token(context.invocation_metadata() or ())
        try:
            async with asyncio.timeout(self._options.handshake_seconds):
                message = await context.read()
        except TimeoutError:
            raise WireError("no first chunk came") from None
        if not isinstance(message, bytes):
            raise WireError("a stripe must begin with a chunk that names its session")
        chunk, _ = codec.decode(message, Chunk, max_header=256)
        session = self._sessions.get(chunk.session)
        if session is None or session.connection != chunk.connection:
            raise WireError("a stripe of a session or connection that does not exist")
        holder = identity(context)
        if holder is not None:
            check_claim(holder, session.peer.info.role, session.peer.info.name)
        return session

    async def _serve(self, peer: Peer, link: Link, context: Any) -> None:
        error = await link.pump()
        if isinstance(error, WireError):
            peer.fail("refused", f"{peer.info.name} broke the protocol: {error}")
            await abort(context, error)

    async def _hello(self, context: Any) -> Hello:
        try:
            async with asyncio.timeout(self._options.handshake_seconds):
                message = await context.read()
        except TimeoutError:
            raise WireError("no Hello came") from None
        # Only now: a stream that ends before its Hello was read looks like an internal error to the dialler.
        sender, holder = Identity(), None
        try:
            self._security.check_token(context.invocation_metadata() or ())
            hello = handshake.read_hello(message)
            sender, holder = hello.sender, identity(context)
            check_claim(holder, sender.role, sender.name)
        except PermissionDenied as error:
            certificate = audit.certificate_of(holder)
            name = sender.name or context.peer()
            audit.refused("a connection", error, name=name, role=sender.role, certificate=certificate)
            raise
        handshake.check_expected(hello, self._local)
        if self._is_fenced(sender.name, sender.incarnation):
            raise Evicted(f"incarnation {sender.incarnation} of {sender.name} was declared dead: join again")
        return hello

    def _session(self, hello: Hello, context: Any) -> Accepted:
        session = self._sessions.get(hello.session)
        if session is None:
            if hello.resumed or not self._open:
                raise PeerLost(
                    f"{self._local.name} does not know this session any more"
                    if self._open
                    else f"{self._local.name} is ending: try another, or again",
                    peer=self._local.name,
                    reason="refused",
                    may_have_run=hello.resumed,
                )
            holder = identity(context)
            info = handshake.info_of(hello.sender, holder.uri if holder else None)
            peer = self._make_peer(info, Segments(self._options.segment_bytes, self._options.device_bytes))
            session = self._sessions[hello.session] = Accepted(peer)
        elif handshake.identity_of(session.peer.info) != hello.sender:
            raise WireError("the session belongs to another member, or to another life of it")
        return session

    def _attach(self, session: Accepted, hello: Hello, context: Any) -> Link:
        if hello.connection <= session.connection:
            raise WireError(f"connection {hello.connection} after connection {session.connection}")
        session.connection = hello.connection
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None
        link = session.peer.new_link(context, hello.connection)
        try:
            session.peer.attach(hello.state, link, session.peer.ask_for_stripes)
        except PsfError as error:
            session.peer.fail("refused", f"{session.peer.info.name} can't go on with its session: {error}")
            raise
        return link

    def _expect_resume(self, session: Accepted) -> None:
        peer = session.peer
        seconds = self._options.resume_seconds + GRACE_SECONDS
        text = (
            f"{peer.info.name} (incarnation {peer.info.incarnation}) did not come back within {seconds:.1f} s"
        )
        loop = asyncio.get_running_loop()
        session.expiry = loop.call_later(seconds, peer.fail, "closed", text)
