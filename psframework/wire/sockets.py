"""TCP connections between two ends that share a session's key: how one is opened, and proved.

Who connects is nobody until it has shown that it knows the key, as in `wire.handover`: no key is sent, what
is read before has a fixed size, and few may try at once. Where a host or a port can't be reached, nothing is
lost: whoever asks goes on without.

    client                                       server
      hello: key's fingerprint, nonce       ->
                                            <-   challenge: nonce, proof over both nonces
      offer: number of the connection, proof ->
                                            <-   confirmed; from here on it is theirs
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from psframework.errors import (
    ConfigurationError,
    ContextClosed,
    DeadlineExceeded,
    PeerLost,
    PermissionDenied,
    PsfError,
    WireError,
)
from psframework.wire import handover
from psframework.wire.listener import Listener
from psframework.wire.memory import Buffer
from psframework.wire.tls_sockets import Handshakes

log = logging.getLogger("psframework.wire")

MAGIC: Final = b"PSFTCP01"
PROOF_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 1.0
_BACKLOG: Final = 64

_REMEMBERED: Final = 1024

# A path that swallows everything, while nothing is said, is noticed after this; `Watch` sees to the rest.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 3

Taker = Callable[[socket.socket], None]
Contexts = Callable[[], ssl.SSLContext | None]
OnRefused = Callable[[str, Exception], None]


def _plain() -> None:
    return None


def _ignore(_: str, __: Exception) -> None:
    pass


class SocketServer:
    """Takes TCP connections of peers that know a session's key.

    Args:
        on_socket: called on the loop with (session's key, number, socket) of each that has proved itself. It
            returns what takes the socket over, or raises a PsfError: the connection is then closed.
        context: what TLS is made with; None for plain TCP.
        on_refused: told (HOST:PORT, error) of each that does not know a key, or whose certificate won't do.
        seconds: how long a connection may take to prove itself.
    """

    def __init__(
        self,
        on_socket: Callable[[bytes, int, socket.socket], Taker],
        context: Contexts = _plain,
        on_refused: OnRefused = _ignore,
        seconds: float = PROOF_SECONDS,
    ) -> None:
        self._on_socket = on_socket
        self._context = context
        self._on_refused = on_refused
        self._seconds = seconds
        self._handshakes = Handshakes()
        self._keys: dict[bytes, bytes] = {}
        self._ended: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._listener: Listener | None = None
        self.port = 0

    def expect(self, session_key: bytes) -> None:
        """Accepts connections under this key from now on; without it a key is refused."""
        self._keys[handover.fingerprint(session_key)] = session_key

    def forget(self, session_key: bytes) -> None:
        """Refuses the key from now on; sockets already taken stay."""
        fingerprint = handover.fingerprint(session_key)
        if self._keys.pop(fingerprint, None) is not None:
            self._ended.append(fingerprint)

    def listen(self, host: str, ports: Sequence[int] = (0,)) -> None:
        """Listens on the first of these ports that is free.

        Raises:
            ConfigurationError: none is, or the host is unknown.
        """
        sock = _bound(host, ports)
        self.port = sock.getsockname()[1]
        self._listener = Listener(sock, self._serve, "psf-sockets")

    def stop(self) -> None:
        """Takes no more, at once: nothing listens at the port any longer."""
        if self._listener is not None:
            self._listener.stop()
        self._handshakes.close()

    async def close(self) -> None:
        """As `stop`; returns when those that were proving themselves are gone."""
        self.stop()
        if self._listener is not None:
            await self._listener.close()

    async def _serve(self, connection: socket.socket) -> None:
        address = _other_end(connection)
        try:
            async with asyncio.timeout(self._seconds):
                await self._take(connection)
        except (PsfError, OSError) as error:
            log.debug("refused a connection of %s: %s", address, error)
            if is_refusal(error):
                self._on_refused(address, error)

    async def _take(self, connection: socket.socket) -> None:
        _tune(connection)
        context = self._context()
        if context is None:
            sock = socket.socket(fileno=connection.detach())
        else:
            sock = await self._handshakes.secure(connection, context, server_side=True)
        try:
            hello = await _receive(sock, handover.HELLO_BYTES)
            key = handover.read_hello(hello, self._keys, MAGIC, ended=self._ended)
            challenge, nonce = handover.pack_challenge(key, hello)
            await _send(sock, challenge)
            offer = await _receive(sock, handover.OFFER_BYTES)
            number = handover.read_offer(key, hello, nonce, offer)
            if handover.fingerprint(key) not in self._keys:
                raise ContextClosed("the session has ended meanwhile")
            taker = self._on_socket(key, number, sock)
            if sock.send(handover.CONFIRMED) != len(handover.CONFIRMED):
                raise WireError("no room for one byte")
        except BaseException:
            sock.close()
            raise
        taker(sock)


async def connect(
    host: str,
    port: int,
    session_key: bytes,
    number: int,
    *,
    context: ssl.SSLContext | None = None,
    server_name: str = "",
    seconds: float = CONNECT_SECONDS,
) -> socket.socket:
    """Opens connection `number` to a SocketServer, and proves to it that this side knows the key.

    Args:
        host: tried by each of its addresses in turn; one that does not answer has only its share of the time.
        port: as the peer told it.
        session_key: the key that both ends know.
        number: tells the peer what the connection is for.
        context: for TLS.
        server_name: what the peer's certificate must be for.
        seconds: for all of it.

    Raises:
        PeerLost: nobody can be reached there.
        PermissionDenied: whoever listens there does not know the key.
        WireError: it speaks otherwise, or refuses.
        DeadlineExceeded: it took too long.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    failure: Exception = PeerLost(f"{host} has no address", reason="refused")
    try:
        async with asyncio.timeout(seconds):
            places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for tried, (family, kind, protocol, _, address) in enumerate(places):
                share = (end - loop.time()) / (len(places) - tried)
                try:
                    sock = socket.socket(family, kind, protocol)
                    await _reach(sock, address, share)
                    return await _agree(sock, session_key, number, context, server_name or host)
                except (PsfError, OSError) as error:
                    if not isinstance(failure, DeadlineExceeded):  # that one may answer yet
                        failure = error
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within {seconds} s from {host}:{port}") from None
    except OSError as error:
        failure = error
    try:
        if isinstance(failure, PsfError):
            raise failure
        raise PeerLost(f"can't connect to {host}:{port}: {failure}", reason="refused") from None
    finally:
        del failure  # it refers to this frame, and the frame to it


def is_refusal(error: Exception) -> bool:
    """Whether somebody was turned away, and not merely gone too early or too late."""
    gone = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return isinstance(error, PermissionDenied | ssl.SSLError) and not gone


async def _reach(sock: socket.socket, address: Any, seconds: float) -> None:
    try:
        sock.setblocking(False)
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(sock, address)
        _tune(sock)
    except TimeoutError:
        sock.close()
        raise DeadlineExceeded(f"no answer within {seconds:.2f} s from {address[0]}") from None
    except BaseException:
        sock.close()
        raise


async def _agree(
    sock: socket.socket, session_key: bytes, number: int, context: ssl.SSLContext | None, server_name: str
) -> socket.socket:
    """The connected socket, or TLS over it, once each end has proved itself; closed if that fails."""
    if context is not None:
        handshakes = Handshakes()
        try:
            sock = await handshakes.secure(sock, context, server_name=server_name)
        finally:
            handshakes.close()
    try:
        hello = handover.pack_hello(session_key, MAGIC)
        await _send(sock, hello)
        challenge = await _receive(sock, handover.CHALLENGE_BYTES)
        await _send(sock, handover.pack_offer(session_key, hello, challenge, number))
        handover.check_answer(await _receive(sock, len(handover.CONFIRMED)))
    except BaseException:
        sock.close()
        raise
    return sock


async def _receive(sock: socket.socket, nbytes: int) -> bytes:
    came = b""
    while len(came) < nbytes:
        try:
            data = sock.recv(nbytes - len(came))
        except BlockingIOError:
            await handover.wait_for(sock)
            continue
        if not data:
            raise WireError("the other end closed the connection before it was agreed on")
        came += data
    return came


async def _send(sock: socket.socket, data: Buffer) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            await handover.wait_for(sock, writing=True)


def _bound(host: str, ports: Sequence[int]) -> socket.socket:
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigurationError(f"bind address {host!r} is unknown: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    for port in ports:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(_BACKLOG)
            return sock
        except OSError as error:
            failure = error
            sock.close()
    raise ConfigurationError(f"no port of {host} for sockets: {failure}")


def _other_end(connection: socket.socket) -> str:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # it has gone already
        return "unknown"
    return f"{host}:{port}"


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
