"""The side that is dialled: the CallService servicer, which finds or makes the session of each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from psframework.errors import Evicted, PeerLost, PsfError, WireError
from psframework.rpc import handshake
from psframework.rpc.call import PeerInfo
from psframework.rpc.frames import Hello, Welcome
from psframework.rpc.identity import check_claim, identity
from psframework.rpc.limits import AgentOptions
from psframework.rpc.peer import Peer
from psframework.rpc.security import Security
from psframework.rpc.status import abort
from psframework.rpc.stream import Link

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
        options: limits; a broken session is kept for `resume_seconds` and a little.
        make_peer: makes the Peer of a new session.
        is_fenced: whether that life of a member was declared dead.
    """

    def __init__(
        self,
        local: PeerInfo,
        security: Security,
        options: AgentOptions,
        make_peer: Callable[[PeerInfo], Peer],
        is_fenced: Callable[[str, int], bool],
    ) -> None:
        self._local = local
        self._security = security
        self._options = options
        self._make_peer = make_peer
        self._is_fenced = is_fenced
        self._sessions: dict[bytes, Accepted] = {}
        self._open = True

    def handler(self) -> grpc.GenericRpcHandler:
        """The generic handler to add to a server; bytes go through unparsed."""
        methods: dict[str, Any] = {"Connect": grpc.stream_stream_rpc_method_handler(self.connect)}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def close(self) -> None:
        """Accepts nothing more; sessions end by closing their peers."""
        self._open = False
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
        except PsfError as error:
            await context.write(handshake.refusal(error))
            return
        try:
            await self._serve(session.peer, link, context)
        finally:
            if session.peer.detach(link) and session.peer.lost is None:
                self._expect_resume(session)

    async def _serve(self, peer: Peer, link: Link, context: Any) -> None:
        welcome = Welcome(sender=handshake.identity_of(self._local), state=peer.state())
        await context.write(handshake.welcome_message(welcome))
        error = await link.pump()
        if isinstance(error, WireError):
            peer.fail("refused", f"{peer.info.name} broke the protocol: {error}")
            await abort(context, error)

    async def _hello(self, context: Any) -> Hello:
        self._security.check_token(context.invocation_metadata() or ())
        try:
            async with asyncio.timeout(self._options.handshake_seconds):
                message = await context.read()
        except TimeoutError:
            raise WireError("no Hello came") from None
        hello = handshake.read_hello(message)
        check_claim(identity(context), hello.sender.role, hello.sender.name)
        handshake.check_expected(hello, self._local)
        sender = hello.sender
        if self._is_fenced(sender.name, sender.incarnation):
            raise Evicted(f"incarnation {sender.incarnation} of {sender.name} was declared dead: join again")
        return hello

    def _session(self, hello: Hello, context: Any) -> Accepted:
        session = self._sessions.get(hello.session)
        if session is None:
            if hello.resumed or not self._open:
                raise PeerLost(
                    f"{self._local.name} does not know this session any more",
                    peer=self._local.name,
                    reason="refused",
                    may_have_run=hello.resumed,
                )
            holder = identity(context)
            peer = self._make_peer(handshake.info_of(hello.sender, holder.uri if holder else None))
            session = self._sessions[hello.session] = Accepted(peer)
        elif session.peer.info.name != hello.sender.name or session.peer.info.role != hello.sender.role:
            raise WireError("the session belongs to another member")
        return session

    def _attach(self, session: Accepted, hello: Hello, context: Any) -> Link:
        if hello.connection <= session.connection:
            raise WireError(f"connection {hello.connection} after connection {session.connection}")
        session.connection = hello.connection
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None
        link = session.peer.new_link(context)
        session.peer.attach(hello.state, link)
        return link

    def _expect_resume(self, session: Accepted) -> None:
        peer = session.peer
        seconds = self._options.resume_seconds + GRACE_SECONDS
        text = (
            f"{peer.info.name} (incarnation {peer.info.incarnation}) did not come back within {seconds:.1f} s"
        )
        loop = asyncio.get_running_loop()
        session.expiry = loop.call_later(seconds, peer.fail, "closed", text)
