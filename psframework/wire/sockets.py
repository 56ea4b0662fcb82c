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
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from psframework.errors import ConfigurationError, DeadlineExceeded, PeerLost, PsfError, WireError
from psframework.wire import handover
from psframework.wire.listener import Listener
from psframework.wire.memory import Buffer

log = logging.getLogger("psframework.wire")

MAGIC: Final = b"PSFTCP01"
PROOF_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 1.0
_BACKLOG: Final = 64

# A path that swallows everything, while nothing is said, is noticed after this; `Watch` sees to the rest.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 3
STUCK_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 5.0
_TCP_INFO: Final = struct.Struct("=8x13I")  # Linux: struct tcp_info as far as tcpi_last_ack_recv
_UNACKNOWLEDGED, _SINCE_LAST_MS = 4, 12

Taker = Callable[[socket.socket], None]
Contexts = Callable[[], ssl.SSLContext | None]


def _plain() -> None:
    return None


def _ignore(_: BaseException) -> None:
    pass


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that behaves like a plain one which does not block."""

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Sends of the first buffer; who sends must look how much has left anyway."""
        return self.send(next(iter(buffers)))

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


class SocketServer:
    """Takes TCP connections of peers that know a session's key.

    Args:
        on_socket: called on the loop with (session's key, number, socket) of each that has proved itself. It
            returns what takes the socket over, or raises a PsfError: the connection is then closed.
        context: what TLS is made with; None for plain TCP.
        seconds: how long a connection may take to prove itself.
    """

    def __init__(
        self,
        on_socket: Callable[[bytes, int, socket.socket], Taker],
        context: Contexts = _plain,
        seconds: float = PROOF_SECONDS,
    ) -> None:
        self._on_socket = on_socket
        self._context = context
        self._seconds = seconds
        self._keys: dict[bytes, bytes] = {}
        self._listener: Listener | None = None
        self.port = 0

    def expect(self, session_key: bytes) -> None:
        """Accepts connections under this key from now on; without it a key is refused."""
        self._keys[handover.fingerprint(session_key)] = session_key

    def forget(self, session_key: bytes) -> None:
        """Refuses the key from now on; sockets already taken stay."""
        self._keys.pop(handover.fingerprint(session_key), None)

    def listen(self, host: str, ports: Sequence[int] = (0,)) -> None:
        """Listens on the first of these ports that is free.

        Raises:
            ConfigurationError: none is, or the host is unknown.
        """
        sock = _bound(host, ports)
        self.port = sock.getsockname()[1]
        self._listener = Listener(sock, self._serve, "psf-sockets")

    async def close(self) -> None:
        """Takes no more."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._take(connection)
        except (PsfError, OSError) as error:
            log.debug("refused a connection: %s", error)

    async def _take(self, connection: socket.socket) -> None:
        _tune(connection)
        sock = await _secure(connection, self._context(), server_side=True)
        try:
            hello = await _receive(sock, handover.HELLO_BYTES)
            key = handover.read_hello(hello, self._keys, MAGIC)
            challenge, nonce = handover.pack_challenge(key, hello)
            await _send(sock, challenge)
            offer = await _receive(sock, handover.OFFER_BYTES)
            number = handover.read_offer(key, hello, nonce, offer)
            if handover.fingerprint(key) not in self._keys:
                raise WireError("the session has ended meanwhile")
            taker = self._on_socket(key, number, sock)
            if sock.send(handover.CONFIRMED) != len(handover.CONFIRMED):
                raise WireError("no room for one byte")
        except BaseException:
            sock.close()
            raise
        taker(sock)


class Watch:
    """Notices a path that swallows what is sent; the kernel alone gives up after a quarter of an hour.

    A peer that merely does not read still acknowledges, so it may take as long as it likes.

    Args:
        sock: a TCP socket; for others nothing is done.
        stuck: called, once, with what is wrong.
    """

    def __init__(self, sock: socket.socket, stuck: Callable[[BaseException], None]) -> None:
        self._socket = sock
        self._stuck = stuck
        self._timer: asyncio.TimerHandle | None = None
        if sock.family != getattr(socket, "AF_UNIX", None) and hasattr(socket, "TCP_INFO"):
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Looks no more; before the socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stuck = _ignore  # else each would refer to the other

    def _look(self) -> None:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        if is_stuck(info):
            self._timer = None
            self._stuck(ConnectionError(f"nothing that was sent has arrived for {STUCK_SECONDS:.0f} s"))
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)


def is_stuck(info: bytes) -> bool:
    """Whether Linux's `tcp_info` says that bytes are under way, and that no word of any has come for long."""
    fields = _TCP_INFO.unpack(info)
    return bool(fields[_UNACKNOWLEDGED] and fields[_SINCE_LAST_MS] > 1000 * STUCK_SECONDS)


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
        host: tried by each of its addresses in turn.
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
    failure: Exception = PeerLost(f"{host} has no address", reason="refused")
    try:
        async with asyncio.timeout(seconds):
            for family, kind, protocol, _, address in await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            ):
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, address)
                    _tune(sock)
                    sock = await _secure(sock, context, server_name=server_name or host)
                    await _prove(sock, session_key, number)
                    return sock
                except (PsfError, OSError) as error:
                    failure = error
                    sock.close()
                except BaseException:
                    sock.close()
                    raise
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


async def _prove(sock: socket.socket, session_key: bytes, number: int) -> None:
    hello = handover.pack_hello(session_key, MAGIC)
    await _send(sock, hello)
    challenge = await _receive(sock, handover.CHALLENGE_BYTES)
    await _send(sock, handover.pack_offer(session_key, hello, challenge, number))
    handover.check_answer(await _receive(sock, len(handover.CONFIRMED)))


async def _secure(
    sock: socket.socket, context: ssl.SSLContext | None, *, server_side: bool = False, server_name: str = ""
) -> socket.socket:
    """The socket after a TLS handshake, if there is a context; it takes the plain one over."""
    if context is None:
        return socket.socket(fileno=sock.detach())
    context.sslsocket_class = TlsSocket
    secure = context.wrap_socket(
        sock, server_side=server_side, do_handshake_on_connect=False, server_hostname=server_name or None
    )
    try:
        while True:
            try:
                secure.do_handshake()
                return secure
            except ssl.SSLWantReadError:
                await handover.wait_for(secure)
            except ssl.SSLWantWriteError:
                await handover.wait_for(secure, writing=True)
    except BaseException:
        secure.close()
        raise


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


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
