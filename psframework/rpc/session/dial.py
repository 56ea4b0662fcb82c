"""The side that dials: opens a session, keeps it, and redials when the connection breaks."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from psframework.errors import DeadlineExceeded, PeerLost, PsfError, WireError
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.security.credentials import Security
from psframework.rpc.session import frames, handshake
from psframework.rpc.session.frames import Hello, Identity, Welcome
from psframework.rpc.session.peer import Home, Peer
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.sockets import Place, Sockets
from psframework.rpc.session.stream import Link, close_quietly
from psframework.rpc.status import from_rpc_error

CONNECT = "/psframework.proto.v1.CallService/Connect"
STRIPE = "/psframework.proto.v1.CallService/Stripe"
FIRST_PAUSE, LONGEST_PAUSE, SHORTEST_TRY = 0.02, 0.25, 0.01
SOCKET_STRIPES = 2
MANY_SECONDS = 1.5
TELL_SECONDS = 5.0

log = logging.getLogger("psframework.rpc")


class Refused(Exception):
    """The other side answered, and said no: trying again can't change it."""

    def __init__(self, error: PsfError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to dial.

    Args:
        addresses: HOST:PORT, best first; tried in this order.
        expected: who must answer; empty fields match anybody.
    """

    addresses: tuple[str, ...]
    expected: Identity

    def __str__(self) -> str:
        return f"{self.expected.name or self.expected.role} at {', '.join(self.addresses)}"


class Connection:
    """One open connection: a channel with the call stream on it, welcomed by the other side."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self.channel = channel
        self.address = address
        self.stream: Any = channel.stream_stream(CONNECT)()
        self.welcome = Welcome()

    async def shake_hands(self, hello: Hello) -> None:
        """Sends the Hello and takes the Welcome."""
        await self.stream.write(handshake.hello_message(hello))
        answer = await self.stream.read()
        if answer is grpc.aio.EOF:
            raise PeerLost("the connection was closed during the handshake")
        try:
            self.welcome = handshake.read_welcome(answer)
            handshake.check_answer(hello.expected, self.welcome.sender)
        except PsfError as error:
            raise Refused(error) from None

    async def close(self) -> None:
        """Ends the stream, then the channel."""
        self.stream.cancel()
        await close_quietly(self.channel)


class Dialer:
    """Keeps one session with one target alive.

    Args:
        target: whom to dial.
        local: who this process is.
        security: what the channels are made with.
        home: what all peers share; its `resume_seconds` bound redialling.
        make_peer: makes the Peer once it is known who answered.

    Attributes:
        trouble: why the last attempt failed; empty before.
    """

    def __init__(
        self,
        target: Target,
        local: PeerInfo,
        security: Security,
        home: Home,
        make_peer: Callable[[PeerInfo, Segments], Peer],
    ) -> None:
        self._target = target
        self._local = local
        self._security = security
        self._home = home
        self._options = home.options
        self._segments = Segments(home.options.segment_bytes, home.options.device_bytes)
        self._stripes: set[asyncio.Task[None]] = set()
        self._make_peer = make_peer
        self._session = os.urandom(handshake.SESSION_BYTES)
        self._attempts = 0
        self._peer: Peer | None = None
        self.trouble = ""

    async def run(self, opened: asyncio.Future[Peer], deadline: Deadline) -> None:
        """Opens the session, resolves `opened`, and stays until the session has ended for good."""
        try:
            connection = await self._dial(deadline)
        except Exception as error:
            if not opened.done():
                opened.set_exception(error)
            return
        try:
            info = handshake.info_of(connection.welcome.sender)
            peer = self._peer = self._make_peer(info, self._segments)
            await self._keep(peer, connection, opened)
        finally:
            if self._peer is not None:
                self._peer.fail("closed", f"the connection to {self._peer.info.name} was closed here")

    async def _keep(self, peer: Peer, connection: Connection, opened: asyncio.Future[Peer]) -> None:
        while True:
            try:
                error = await self._pump(peer, connection, opened)
            finally:
                await _to_the_end(self._close(connection))
            if peer.lost:
                return
            try:
                if isinstance(error, WireError):
                    raise error
                _check_fits(error)
                connection = await self._dial(Deadline.after(self._options.resume_seconds))
            except PsfError as failure:
                reason = failure.reason if isinstance(failure, PeerLost) else "refused"
                peer.fail(reason, f"lost {peer.info.name} (incarnation {peer.info.incarnation}): {failure}")
                if not opened.done():
                    opened.set_exception(failure)
                return
            if peer.lost:  # declared dead meanwhile: it must not come back
                await _to_the_end(connection.close())
                return

    async def _pump(
        self, peer: Peer, connection: Connection, opened: asyncio.Future[Peer]
    ) -> BaseException | None:
        link = peer.new_link(connection.stream, self._attempts)
        try:
            sockets = self._sockets(peer, link, connection)
            open_stripes = partial(self._open_stripes, peer, link, connection, sockets)
            peer.attach(connection.welcome.state, link, open_stripes, sockets)
            if opened.done():
                self._home.spawn(peer.shorten())
            else:
                opened.set_result(peer)
            return await link.pump()
        except WireError as error:
            return error
        finally:
            peer.detach(link)

    def _sockets(self, peer: Peer, link: Link, connection: Connection) -> Sockets | None:
        state, host = connection.welcome.state, connection.address.rpartition(":")[0].strip("[]")
        if not (self._options.sockets and state.socket_port and state.segment_key and host):
            return None
        server_name = self._security.server_name(peer.info.role, peer.info.name)
        place = Place(host, state.socket_port, state.segment_key, server_name)
        return Sockets(link, place, partial(self._security.socket_context, server_side=False))

    def _open_stripes(self, peer: Peer, link: Link, connection: Connection, sockets: Sockets | None) -> None:
        if sockets is None or not sockets.moved:  # nothing waits for sockets that may not come
            for _ in range(self._options.stripes):
                self._begin(self._stripe(peer, link, connection, self._attempts))
        if sockets is not None:
            for _ in range(SOCKET_STRIPES):
                self._begin(self._socket_stripe(peer, link, connection, sockets))

    def _begin(self, stripe: Coroutine[Any, Any, None]) -> None:
        self._stripes.add(asyncio.create_task(stripe, name="psf-stripe"))

    async def _socket_stripe(self, peer: Peer, link: Link, connection: Connection, sockets: Sockets) -> None:
        moved, sock = sockets.moved, await sockets.open(stripe=True)
        if sock is not None:
            await peer.run_socket(sock, link)
        elif moved:  # none of gRPC was opened for this one
            await self._stripe(peer, link, connection, link.number)

    async def _stripe(self, peer: Peer, link: Link, connection: Connection, attempt: int) -> None:
        stream: Any = connection.channel.stream_stream(STRIPE)()
        try:
            await stream.write(Chunk(session=self._session, connection=attempt).SerializeToString())
            error = await peer.bulk.run_stripe(stream)
            if isinstance(error, WireError):
                peer.fail("refused", f"{peer.info.name} broke the protocol: {error}")
        finally:
            stream.cancel()
            link.close()  # chunks may be lost with a stripe: the whole connection is made anew

    async def _close(self, connection: Connection) -> None:
        stripes, self._stripes = self._stripes, set()
        for task in stripes:
            task.cancel()
        await asyncio.gather(*stripes, return_exceptions=True)
        await connection.close()

    async def _dial(self, deadline: Deadline) -> Connection:
        pause, told = FIRST_PAUSE, boottime()
        last: PsfError = DeadlineExceeded("no time was left")
        while True:
            refused: PsfError | None = None
            for address in self._target.addresses:
                try:
                    return await self._connect(address, deadline)
                except Refused as error:
                    refused = error.error
                except PsfError as error:
                    # The last try may have had no time: what an earlier one was told says more.
                    if isinstance(last, DeadlineExceeded) or not isinstance(error, DeadlineExceeded):
                        last = error
            if refused is not None:
                raise refused
            if not isinstance(last, PeerLost | DeadlineExceeded):
                raise last
            lost = self._unreachable(last)
            self.trouble = str(lost)
            if deadline.remaining() < SHORTEST_TRY:
                raise lost
            if boottime() - told > TELL_SECONDS:
                told = boottime()
                log.warning("%s; trying again", lost)
            left = deadline.remaining() - SHORTEST_TRY / 2
            await asyncio.sleep(min(pause * random.uniform(0.7, 1.0), left))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self, address: str, deadline: Deadline) -> Connection:
        expected = self._target.expected
        channel = self._security.channel(address, role=expected.role, name=expected.name)
        connection = Connection(channel, address)
        seconds = min(deadline.remaining(), self._options.handshake_seconds)
        if len(self._target.addresses) > 1:  # one that swallows packets must not take the others' time
            seconds = min(seconds, max(MANY_SECONDS, seconds / len(self._target.addresses)))
        try:
            async with asyncio.timeout(seconds):
                await connection.shake_hands(self._hello())
            return connection
        except BaseException as error:
            await _to_the_end(connection.close())
            if isinstance(error, asyncio.InvalidStateError) or _ended_while_writing(error):
                raise PeerLost(f"{address} ended the connection during the handshake") from None
            if isinstance(error, grpc.aio.AioRpcError):
                hint = self._security.hint
                raise from_rpc_error(error, peer=expected.name or address, hint=hint) from None
            if isinstance(error, TimeoutError):
                text = f"{address} did not answer the handshake within {seconds:.1f} s"
                raise DeadlineExceeded(text) from None
            raise

    def _hello(self) -> Hello:
        self._attempts += 1
        peer = self._peer
        if peer:
            state = peer.state()
        else:
            home = self._home
            state = handshake.link_state(
                self._options, home.segment_path, self._segments.key, home.socket_port
            )
        expected = handshake.identity_of(peer.info) if peer else self._target.expected
        return Hello(
            protocol=frames.PROTOCOL,
            session=self._session,
            connection=self._attempts,
            sender=handshake.identity_of(self._local),
            expected=expected,
            state=state,
            resumed=peer is not None,
        )

    def _unreachable(self, last: PsfError) -> PeerLost:
        return PeerLost(
            f"can't reach {self._target}: {last}",
            peer=self._target.expected.name,
            reason="closed",
            may_have_run=False,
        )


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work`, which is short, even if the caller is cancelled: an open channel would stay open."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _check_fits(error: BaseException | None) -> None:
    """Raises if the connection ended over too large a message: sent again, it would end the next one."""
    if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise WireError(f"a message is larger than one side takes: {error.details()}")


def _ended_while_writing(error: BaseException) -> bool:
    """Whether the stream ended under a write: gRPC hides the true status then; another try will tell it."""
    return (
        isinstance(error, grpc.aio.AioRpcError)
        and error.code() is grpc.StatusCode.INTERNAL
        and "Internal error from Core" in (error.details() or "")
    )
