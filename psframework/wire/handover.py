"""Handing segments to another process: descriptors over a Unix socket, between two ends that share a key.

A path that exists on both hosts proves nothing, so being on one host is shown by a descriptor that
arrives. The key is a secret of the session, exchanged on the authenticated call stream. It is never
sent here: each end proves that it knows it, so neither a squatter on the socket's path nor a stranger
that dials it learns a key or gets a segment.

    client                                       server
      hello: key's fingerprint, nonce       ->
                                            <-   challenge: nonce, proof over both nonces
      offer: segment's id, proof  + descriptor ->
                                            <-   confirmed | refused, reason
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final

from psframework.errors import (
    ConfigurationError,
    ContextClosed,
    DeadlineExceeded,
    PeerLost,
    PermissionDenied,
    PsfError,
    ResourceExhausted,
    WireError,
)
from psframework.wire.shm import Segment

KEY_BYTES: Final = 32
_DIGEST: Final = 32
_NONCE: Final = 32
SEGMENTS: Final = b"PSFSEG01"
_HELLO: Final = struct.Struct(f"<8s{_DIGEST}s{_NONCE}s")
_CHALLENGE: Final = struct.Struct(f"<{_NONCE}s{_DIGEST}s")
_OFFER: Final = struct.Struct(f"<Q{_DIGEST}s")
HELLO_BYTES, CHALLENGE_BYTES, OFFER_BYTES = _HELLO.size, _CHALLENGE.size, _OFFER.size
_MAX_PACKET: Final = 1024
_FD: Final = struct.Struct("i")
_SUN_PATH: Final = 107

# What a server answers in place of a challenge or a confirmation: one byte, then the reason as text.
CONFIRMED: Final = b"\0"
_REFUSALS: Final[dict[bytes, type[PsfError]]] = {
    b"\1": PermissionDenied,
    b"\2": ResourceExhausted,
    b"\3": WireError,
    b"\4": ContextClosed,
}


class PeerLeft(WireError):
    """The other end closed the socket before the handover was over."""


def new_key() -> bytes:
    """A fresh session key."""
    return secrets.token_bytes(KEY_BYTES)


def send_descriptor(sock: socket.socket, fd: int, payload: bytes) -> None:
    """Sends one packet with a descriptor attached; the socket is a Unix SOCK_SEQPACKET."""
    socket.send_fds(sock, [payload], [fd])


def recv_descriptor(sock: socket.socket) -> tuple[int | None, bytes]:
    """Receives one packet and the descriptor attached to it (None if there is none).

    Raises:
        WireError: several descriptors, or a packet too long; what came is closed.
        BlockingIOError: nothing is there yet and the socket does not block.
    """
    # Not `socket.recv_fds`: it drops its flags, and the descriptors would leak into child processes.
    room = socket.CMSG_SPACE(4 * _FD.size)
    payload, control, flags, _ = sock.recvmsg(_MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    fds = [
        fd
        for level, kind, raw in control
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for (fd,) in _FD.iter_unpack(raw[: len(raw) - len(raw) % _FD.size])
    ]
    if len(fds) > 1 or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        for fd in fds:
            os.close(fd)
        raise WireError("a packet of the wrong size or with the wrong number of descriptors")
    return (fds[0] if fds else None), payload


def default_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where sockets go: PSF_SHM_DIR, else a directory of this user under XDG_RUNTIME_DIR or the temp dir."""
    if chosen := environment.get("PSF_SHM_DIR"):
        return Path(chosen)
    base = environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"psframework-{os.geteuid()}"


def prepare_directory(directory: Path) -> Path:
    """Makes the directory for sockets (mode 0700) if it is missing, and checks that it is a safe place.

    Raises:
        ConfigurationError: it can't be made, or strangers could replace the sockets in it.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigurationError(
            f"no directory for sockets at {directory}: {error}; set PSF_SHM_DIR"
        ) from None
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigurationError(f"{directory} is writable for everyone; chmod it, or set PSF_SHM_DIR")
    return directory.absolute()


def unix_socket() -> socket.socket:
    """A non-blocking Unix socket that keeps packets apart."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The path in a form that fits into a socket address (107 bytes), by way of its directory if need be."""
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


async def wait_for(sock: socket.socket, *, writing: bool = False) -> None:
    """Waits until the socket can be read (or written)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(sock, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        remove(sock)


async def receive(sock: socket.socket, *, descriptor: bool = False) -> tuple[int, bytes]:
    """Waits for one packet; with its descriptor, which the caller owns, or -1.

    Raises:
        PeerLeft: the other end closed.
        WireError: a descriptor is missing or unasked for.
    """
    while True:
        try:
            fd, payload = recv_descriptor(sock)
        except BlockingIOError:
            await wait_for(sock)
            continue
        break
    if fd is not None and not (descriptor and payload):
        os.close(fd)
        raise WireError("a descriptor came that nobody asked for")
    if not payload:
        raise PeerLeft("the other end closed the socket midway")
    return (-1 if fd is None else fd), payload


async def send(sock: socket.socket, payload: bytes, fd: int | None = None) -> None:
    """Sends one packet, waiting while the socket is full."""
    while True:
        try:
            if fd is None:
                sock.send(payload)
            else:
                send_descriptor(sock, fd, payload)
            return
        except BlockingIOError:
            await wait_for(sock, writing=True)


async def offer_segment(
    path: str | os.PathLike[str],
    session_key: bytes,
    segment_id: int,
    segment: Segment,
    deadline_s: float = 5.0,
) -> None:
    """Hands a segment to the process that listens at `path`; returns when that process has mapped it.

    Args:
        path: socket of the peer's SegmentServer, as the peer told it.
        session_key: the key that both ends know.
        segment_id: number under which the peer will find it.
        segment: stays open on this side too.
        deadline_s: seconds for all of it.

    Raises:
        PeerLost: nobody listens at the path here, so the peer is not on this host; or it went away.
        PermissionDenied: the peer does not know the key, or refuses it.
        ResourceExhausted, WireError: the peer could not map the segment, or refuses it.
        DeadlineExceeded: it took too long.
    """
    await _hand_over(Path(path), session_key, segment_id, segment.fd, deadline_s)


async def offer_socket(
    path: str | os.PathLike[str],
    session_key: bytes,
    number: int,
    sock: socket.socket,
    deadline_s: float = 5.0,
) -> None:
    """Hands one end of a Unix stream socket over; arguments and errors as of `offer_segment`."""
    await _hand_over(Path(path), session_key, number, sock.fileno(), deadline_s)


async def _hand_over(path: Path, session_key: bytes, number: int, fd: int, deadline_s: float) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            with unix_socket() as sock:
                await _connect(sock, path)
                await _offer(sock, session_key, number, fd)
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within {deadline_s} s from the peer's socket at {path}") from None
    except OSError as error:
        raise PeerLost(f"can't hand a descriptor over at {path}: {error}", reason="refused") from None


async def _connect(sock: socket.socket, path: Path) -> None:
    while True:
        try:
            with socket_address(path) as address:
                sock.connect(address)
            return
        except BlockingIOError:
            # A full backlog can't be waited for: the kernel wakes nobody when a place gets free.
            await asyncio.sleep(0.005)


async def _offer(sock: socket.socket, session_key: bytes, segment_id: int, fd: int) -> None:
    hello = pack_hello(session_key)
    await send(sock, hello)
    answer = (await receive(sock))[1]
    await send(sock, pack_offer(session_key, hello, answer, segment_id), fd)
    check_answer((await receive(sock))[1])


def pack_hello(session_key: bytes, magic: bytes = SEGMENTS) -> bytes:
    """The client's first packet; `magic` says what for."""
    return _HELLO.pack(magic, fingerprint(session_key), secrets.token_bytes(_NONCE))


def read_hello(
    hello: bytes, keys: Mapping[bytes, bytes], magic: bytes = SEGMENTS, *, ended: Container[bytes] = ()
) -> bytes:
    """The session key that the client means, of `keys` (by fingerprint).

    Raises:
        WireError: no hello of this protocol.
        ContextClosed: the session has `ended` (by fingerprint).
        PermissionDenied: no such key.
    """
    if len(hello) != HELLO_BYTES or not hello.startswith(magic):
        raise WireError("not a handover of this kind and version")
    wanted = _HELLO.unpack(hello)[1]
    key = keys.get(wanted)
    if key is None and wanted in ended:
        raise ContextClosed("the session has ended meanwhile")
    if key is None:
        raise PermissionDenied("no session with this key")
    return key


def pack_challenge(session_key: bytes, hello: bytes) -> tuple[bytes, bytes]:
    """The server's answer to a hello, and the nonce in it."""
    nonce = secrets.token_bytes(_NONCE)
    return _CHALLENGE.pack(nonce, _proof(session_key, b"server", hello, nonce)), nonce


def pack_offer(session_key: bytes, hello: bytes, answer: bytes, segment_id: int) -> bytes:
    """The client's second packet, once the server's challenge has shown that it knows the key.

    Raises:
        PermissionDenied: it does not.
    """
    return _OFFER.pack(segment_id, answer_challenge(session_key, hello, answer, segment_id))


def answer_challenge(session_key: bytes, hello: bytes, answer: bytes, segment_id: int) -> bytes:
    """Checks that the server knows the key; returns the client's own proof.

    Raises:
        PermissionDenied: it does not.
    """
    if len(answer) != _CHALLENGE.size:
        check_answer(answer)
        raise WireError("the peer's socket did not answer with a challenge")
    nonce, proof = _CHALLENGE.unpack(answer)
    if not hmac.compare_digest(proof, _proof(session_key, b"server", hello, nonce)):
        raise PermissionDenied("whoever listens at the peer's socket does not know the session's key")
    return _proof(session_key, b"client", hello, nonce, segment_id.to_bytes(8, "little"))


def read_offer(session_key: bytes, hello: bytes, nonce: bytes, offer: bytes) -> int:
    """The segment's id in the client's offer.

    Raises:
        WireError: no offer.
        PermissionDenied: the client does not know the key.
    """
    if len(offer) != _OFFER.size:
        raise WireError("not an offer of a segment")
    segment_id, proof = _OFFER.unpack(offer)
    expected = _proof(session_key, b"client", hello, nonce, segment_id.to_bytes(8, "little"))
    if not hmac.compare_digest(proof, expected):
        raise PermissionDenied("the proof does not fit the session's key")
    return int(segment_id)


def pack_answer(error: Exception | None) -> bytes:
    """The server's last packet: confirmed, or why not."""
    if error is None:
        return CONFIRMED
    code = next((code for code, kind in _REFUSALS.items() if isinstance(error, kind)), b"\3")
    return code + str(error).encode()[:400]


def check_answer(answer: bytes) -> None:
    """Raises what the server answered, unless it confirmed."""
    if answer != CONFIRMED:
        kind = _REFUSALS.get(answer[:1], WireError)
        raise kind(f"the peer refused the segment: {answer[1:401].decode(errors='replace')}")


def fingerprint(session_key: bytes) -> bytes:
    """Names a key without telling it."""
    return hashlib.sha256(b"psframework segment key" + session_key).digest()


def _proof(session_key: bytes, *what: bytes) -> bytes:
    return hmac.digest(session_key, b"|".join(what), "sha256")
