"""The receiving end of `wire.handover`: a Unix socket where peers on this host hand over segments."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from psframework.errors import ConfigurationError, ContextClosed, PsfError, WireError
from psframework.wire import handover
from psframework.wire.listener import Listener
from psframework.wire.shm import MAX_SEGMENT, Segment
from psframework.wire.threads import in_thread

log = logging.getLogger("psframework.wire")

T = TypeVar("T", Segment, socket.socket)
_REMEMBERED = 1024  # sessions that have ended

OnSegment = Callable[[bytes, int, Segment], None]
OnSocket = Callable[[bytes, int, socket.socket], None]

_BACKLOG: Final = 64
SWEEP_SECONDS: Final = 60.0


class SegmentServer:
    """Receives segments from peers that know a session key; an async context manager.

    The directory is made with mode 0700 if it is missing; the socket has a random name and is removed
    on leaving. A socket left over by a killed process is harmless: dialling it fails, and the
    next server of this user removes it.

    Args:
        directory: where the socket goes; None for `handover.default_directory()`.
        on_segment: called on the loop with (session key, segment id, segment), and owner of the segment
            from then on; a PsfError that it raises is the peer's refusal (the segment is then closed).
        on_socket: the same for Unix stream sockets, which are refused without it.
        max_bytes: largest segment to accept.
        seconds: how long one handover may take.

    Raises (on entering):
        ConfigurationError: no socket can be made there; the shared-memory lane is then not offered.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        on_segment: OnSegment | None = None,
        *,
        on_socket: OnSocket | None = None,
        max_bytes: int = MAX_SEGMENT,
        seconds: float = 5.0,
    ) -> None:
        self.on_segment = on_segment
        self.on_socket = on_socket
        self._directory = handover.default_directory() if directory is None else Path(directory)
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._keys: dict[bytes, bytes] = {}
        self._ended: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        self._listener: Listener | None = None

    @property
    def path(self) -> str:
        """Absolute path of the socket, to tell the peer on the call stream."""
        if self._path is None:
            raise ConfigurationError("the segment server is not running: enter it with `async with`")
        return str(self._path)

    def expect(self, session_key: bytes) -> None:
        """Accepts segments under this key from now on; without it a key is refused."""
        self._keys[handover.fingerprint(session_key)] = session_key

    def forget(self, session_key: bytes) -> None:
        """Refuses the key from now on; segments already handed over stay."""
        fingerprint = handover.fingerprint(session_key)
        if self._keys.pop(fingerprint, None) is not None:
            self._ended.append(fingerprint)

    async def __aenter__(self) -> SegmentServer:
        if not hasattr(socket, "SOCK_SEQPACKET") or not hasattr(socket, "AF_UNIX"):
            raise ConfigurationError("shared segments need Linux; use the lanes inline,striped")
        directory = handover.prepare_directory(self._directory)
        if directory == handover.default_directory() and not os.environ.get("PSF_SHM_DIR"):
            sweep(directory)
        path = directory / f"{secrets.token_hex(8)}.sock"
        sock = handover.unix_socket()
        try:
            with handover.socket_address(path) as address:
                sock.bind(address)
            self._socket, self._path = sock, path
            path.chmod(0o660)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            self._close()
            raise ConfigurationError(f"can't listen at {path}: {error}; set PSF_SHM_DIR") from None
        self._listener = Listener(sock, self._serve, "psf-segments")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._listener is not None:
            await self._listener.close()

    def stop(self) -> None:
        """Takes nothing more, at once; leaving then waits for what is being served."""
        if self._listener is not None:
            self._listener.stop()
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._socket = self._path = None

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._handover(connection)
        except (PsfError, OSError) as error:
            gone = isinstance(error, ContextClosed | handover.PeerLeft | ConnectionError)  # nothing is amiss
            level = logging.DEBUG if gone else logging.WARNING
            log.log(level, "refused a segment from %s: %s", _credentials(connection), error)
            _refuse(connection, error)
        except Exception as error:  # of `on_segment`: the peer must not wait, other handovers go on
            log.exception("taking a segment from %s failed", _credentials(connection))
            _refuse(connection, error)

    async def _handover(self, connection: socket.socket) -> None:
        hello = (await handover.receive(connection))[1]
        key = handover.read_hello(hello, self._keys, ended=self._ended)
        challenge, nonce = handover.pack_challenge(key, hello)
        await handover.send(connection, challenge)
        fd, offer = await handover.receive(connection, descriptor=True)
        try:
            segment_id = handover.read_offer(key, hello, nonce, offer)
            if fd < 0:
                raise WireError("an offer without a descriptor")
        except PsfError:
            if fd >= 0:
                os.close(fd)
            raise
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            self._take(key, segment_id, _stream_socket(fd), self.on_socket)
            await handover.send(connection, handover.pack_answer(None))
            return
        segment = Segment.from_fd(fd, max_bytes=self._max_bytes)
        try:
            # Mapped pages before the peer goes on; in a thread, since the loop must not wait for them.
            await in_thread(segment.touch, self._seconds / 2)
        except BaseException:
            segment.close()
            raise
        self._take(key, segment_id, segment, self.on_segment)
        await handover.send(connection, handover.pack_answer(None))

    def _take(self, key: bytes, number: int, gift: T, taker: Callable[[bytes, int, T], None] | None) -> None:
        try:
            if handover.fingerprint(key) not in self._keys:
                raise ContextClosed("the session ended while the packets were under way")
            if taker is None:
                raise WireError(f"nobody takes a {type(gift).__name__} here")
            taker(key, number, gift)
        except BaseException:
            gift.close()
            raise


def _stream_socket(fd: int) -> socket.socket:
    """The socket of a descriptor that a peer sent, which is taken over; WireError for other kinds."""
    sock = socket.socket(fileno=fd)
    if (sock.family, sock.type) == (socket.AF_UNIX, socket.SOCK_STREAM):
        return sock
    sock.close()
    raise WireError("a socket, but no Unix stream socket")


def _refuse(connection: socket.socket, error: Exception) -> None:
    with contextlib.suppress(OSError):
        connection.send(handover.pack_answer(error))


def _credentials(connection: socket.socket) -> str:
    """Who is at the other end, for the log."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return "an unknown process"
    pid, uid, _ = struct.unpack("3i", raw)
    return f"process {pid} of user {uid}"


def sweep(directory: Path, age: float = SWEEP_SECONDS) -> None:
    """Removes sockets that killed processes left: older than `age` seconds, and nobody listens any more.

    Only for directories of this machine: whoever listens on another one would look dead from here.
    """
    for path in directory.glob("*.sock"):
        with contextlib.suppress(OSError), handover.unix_socket() as probe:
            if time.time() - path.lstat().st_mtime < age:  # may be between bind and listen
                continue
            try:
                with handover.socket_address(path) as address:
                    probe.connect(address)
            except ConnectionRefusedError:
                path.unlink()
