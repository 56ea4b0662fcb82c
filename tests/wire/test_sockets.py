"""TCP connections under a session's key: who knows it gets one, strangers cost little, TLS shows who."""

import asyncio
import contextlib
import gc
import socket
import struct
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from psframework.errors import (
    ConfigurationError,
    DeadlineExceeded,
    PeerLost,
    PermissionDenied,
    PsfError,
    WireError,
)
from psframework.rpc.security import certificates
from psframework.rpc.security.identity import server_name, socket_identity
from psframework.rpc.security.tls import TlsFiles
from psframework.wire import handover, sockets
from psframework.wire.sockets import MAGIC, SocketServer, TlsSocket, connect

KEY, OTHER = handover.new_key(), handover.new_key()


class Door:
    """A server that keeps what it takes."""

    server: SocketServer

    def __init__(self) -> None:
        self.taken: list[tuple[int, socket.socket]] = []
        self.refusing: PsfError | None = None

    def on_socket(self, key: bytes, number: int, sock: socket.socket) -> Callable[[socket.socket], None]:
        assert key == KEY
        if self.refusing is not None:
            raise self.refusing
        return lambda sock: self.taken.append((number, sock))


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Door]:
    door = Door()
    server = door.server = SocketServer(door.on_socket, **options)
    server.expect(KEY)
    server.listen("127.0.0.1")
    try:
        yield door
    finally:
        await server.close()
        for _, sock in door.taken:
            sock.close()


async def test_who_knows_the_key_gets_a_connection() -> None:
    loop = asyncio.get_running_loop()
    async with opened() as door:
        with await connect("127.0.0.1", door.server.port, KEY, 7) as ours:
            (number, theirs) = door.taken[0]
            assert number == 7
            await loop.sock_sendall(ours, b"there")
            assert await loop.sock_recv(theirs, 10) == b"there"
            await loop.sock_sendall(theirs, b"back")
            assert await loop.sock_recv(ours, 10) == b"back"
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_another_key_and_a_forgotten_one_are_refused() -> None:
    async with opened() as door:
        with pytest.raises(WireError, match="closed the connection"):
            await connect("127.0.0.1", door.server.port, OTHER, 1)
        door.server.forget(KEY)
        with pytest.raises(WireError, match="closed the connection"):
            await connect("127.0.0.1", door.server.port, KEY, 1)
        door.server.expect(KEY)
        door.refusing = WireError("no such connection")
        with pytest.raises(WireError, match="closed the connection"):
            await connect("127.0.0.1", door.server.port, KEY, 1)
        assert not door.taken


async def test_a_refusal_is_freed_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        async with opened() as door:
            port = door.server.port
            for key, closed in ((OTHER, False), (KEY, True)):
                if closed:
                    await door.server.close()
                refused = []
                try:
                    await connect("127.0.0.1", port, key, 1)
                except PsfError as error:
                    refused.append(weakref.ref(error))
                assert refused and refused[0]() is None
    finally:
        gc.enable()


async def test_a_listener_that_does_not_know_the_key_learns_none() -> None:
    came = bytearray()

    async def squat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.readexactly(handover.HELLO_BYTES)
        came.extend(hello)
        writer.write(handover.pack_challenge(OTHER, hello)[0])
        came.extend(await reader.read())
        writer.close()

    squatter = await asyncio.start_server(squat, "127.0.0.1", 0)
    async with squatter:
        with pytest.raises(PermissionDenied, match="does not know"):
            await connect("127.0.0.1", squatter.sockets[0].getsockname()[1], KEY, 1)
    assert KEY not in came and len(came) == handover.HELLO_BYTES


async def test_a_recorded_proof_opens_nothing_a_second_time() -> None:
    loop = asyncio.get_running_loop()
    async with opened() as door:
        hello = handover.pack_hello(KEY, MAGIC)
        offers = []
        for _ in range(2):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", door.server.port))
            await loop.sock_sendall(sock, hello)
            challenge = await loop.sock_recv(sock, handover.CHALLENGE_BYTES)
            offers.append(handover.pack_offer(KEY, hello, challenge, 1))
            await loop.sock_sendall(sock, offers[0])
            answer = await loop.sock_recv(sock, 1)
            sock.close()
            assert answer == (handover.CONFIRMED if len(offers) == 1 else b"")
        assert len(door.taken) == 1


async def test_a_hello_for_segments_opens_no_socket() -> None:
    loop = asyncio.get_running_loop()
    async with opened() as door:
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", door.server.port))
            await loop.sock_sendall(sock, handover.pack_hello(KEY))
            assert await loop.sock_recv(sock, 100) == b""


async def test_who_says_nothing_is_sent_away() -> None:
    loop = asyncio.get_running_loop()
    async with opened(seconds=0.05) as door:
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", door.server.port))
            async with asyncio.timeout(5):
                assert await loop.sock_recv(sock, 1) == b""


async def test_what_can_not_be_reached_is_told_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await connect("127.0.0.1", port, KEY, 1, seconds=0.1)
        assert time.monotonic() - began < 2
    with pytest.raises(PeerLost, match="can't connect"):
        await connect("127.0.0.1", port, KEY, 1)
    with pytest.raises(PeerLost):
        await connect("no.such.host.invalid", port, KEY, 1, seconds=5)


async def test_the_first_free_port_of_several_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = SocketServer(lambda *_: lambda _: None)
        with pytest.raises(ConfigurationError, match="no port"):
            server.listen("127.0.0.1", [port])
        server.listen("127.0.0.1", [port, 0])
        assert server.port != port
        await server.close()
        await server.close()
    with pytest.raises(ConfigurationError, match="unknown"):
        server.listen("no.such.host.invalid")


def info(unacknowledged: int, milliseconds: int) -> bytes:
    return bytes(8) + struct.pack("=13I", *[0] * 4, unacknowledged, *[0] * 7, milliseconds)


def test_a_path_is_stuck_only_if_bytes_are_under_way_and_no_word_has_come() -> None:
    assert sockets.is_stuck(info(1, 20_001))
    assert not sockets.is_stuck(info(1, 20_000)) and not sockets.is_stuck(info(0, 1_000_000))


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="Linux only")
async def test_a_watch_tells_once_and_lets_slow_readers_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LOOK_SECONDS", 0.001)
    told: list[BaseException] = []
    looked: list[bytes] = []
    real = sockets.is_stuck
    monkeypatch.setattr(sockets, "is_stuck", lambda data: looked.append(data) or real(data))
    async with opened() as door:
        with await connect("127.0.0.1", door.server.port, KEY, 1) as ours:
            watch = sockets.Watch(ours, told.append)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 20))  # nobody reads
            await asyncio.sleep(0.05)
            assert len(looked) > 1 and not told
            monkeypatch.setattr(sockets, "is_stuck", lambda _: True)
            await asyncio.sleep(0.05)
            assert len(told) == 1 and isinstance(told[0], ConnectionError)
            watch.close()
            again = sockets.Watch(ours, told.append)
            again.close()
            await asyncio.sleep(0.05)
            assert len(told) == 1


class Sides:
    """Certificates of one cluster."""

    def __init__(self, directory: Path) -> None:
        certificates.init(directory)
        self.server = TlsFiles(certificates.issue(directory, "parameter-server", "ps0"))
        self.client = TlsFiles(certificates.issue(directory, "worker", "w0"))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(tmp_path_factory.mktemp("tls"))


async def test_tls_shows_both_ends_and_carries_what_a_plain_socket_would(sides: Sides) -> None:
    context = sides.client.socket_context(server_side=False)
    name = server_name("parameter-server", "ps0")
    async with opened(context=lambda: sides.server.socket_context(server_side=True)) as door:
        with await connect(
            "127.0.0.1", door.server.port, KEY, 3, context=context, server_name=name, seconds=5
        ) as ours:
            (_, theirs) = door.taken[0]
            assert isinstance(ours, TlsSocket) and isinstance(theirs, TlsSocket)
            holder = socket_identity(theirs)
            assert holder is not None and (holder.role, holder.name) == ("worker", "w0")
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            message = bytes(range(256)) * 40_000
            left, came, room = [memoryview(b"head"), memoryview(message)], bytearray(), bytearray(1 << 16)
            while len(came) < len(message) + 4:
                try:
                    count = ours.sendmsg(left) if left else 0
                    left = left[1:] if left and count == len(left[0]) else left
                except BlockingIOError:
                    pass
                try:
                    came += room[: theirs.recv_into(room)]
                except BlockingIOError:
                    await asyncio.sleep(0)
            assert came == b"head" + message


async def test_tls_refuses_strangers_both_ways(sides: Sides, tmp_path: Path) -> None:
    strangers = Sides(tmp_path)
    name = server_name("parameter-server", "ps0")
    async with opened(context=lambda: sides.server.socket_context(server_side=True)) as door:

        async def dial(files: TlsFiles | None, name: str = name) -> socket.socket:
            context = files.socket_context(server_side=False) if files else None
            return await connect(
                "127.0.0.1", door.server.port, KEY, 1, context=context, server_name=name, seconds=5
            )

        for files, wanted in (
            (strangers.client, name),
            (sides.client, server_name("coordinator")),
            (None, name),
        ):
            with pytest.raises(PsfError):
                await dial(files, wanted)
        assert not door.taken
        (await dial(sides.client)).close()
        assert len(door.taken) == 1
