"""TCP connections under a session's key: who knows it gets one, strangers cost little, TLS shows who."""

import asyncio
import gc
import socket
import ssl
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
from psframework.wire import handover
from psframework.wire.sockets import MAGIC, SocketServer, connect, is_refusal
from psframework.wire.tls_sockets import TlsSocket

KEY, OTHER = handover.new_key(), handover.new_key()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions of every kind
            await asyncio.sleep(0.001)


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


async def test_an_address_that_swallows_everything_has_only_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    found, real, tried = loop.getaddrinfo, loop.sock_connect, []

    async def getaddrinfo(host: str, port: int, **more: Any) -> Any:
        return [each for last in "24" for each in await found(f"127.0.0.{last}", port, **more)]

    async def sock_connect(sock: socket.socket, address: tuple[str, int]) -> None:
        tried.append(address[0])
        if address[0] == "127.0.0.4":
            await real(sock, ("127.0.0.1", address[1]))
        else:
            await asyncio.Event().wait()

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    async with opened() as door:
        (await connect("somewhere", door.server.port, KEY, 1, seconds=4)).close()
        assert tried == ["127.0.0.2", "127.0.0.4"] and len(door.taken) == 1
        door.server.forget(KEY)  # the last refuses; the other may answer another time
        with pytest.raises(DeadlineExceeded):
            await connect("somewhere", door.server.port, KEY, 1, seconds=0.3)


async def test_who_is_turned_away_is_told_and_who_is_only_late_is_not() -> None:
    refused: list[tuple[str, Exception]] = []
    async with opened(on_refused=lambda *each: refused.append(each)) as door:
        for key in (OTHER, KEY):
            door.server.forget(KEY)
            with pytest.raises(WireError):
                await connect("127.0.0.1", door.server.port, key, 1)
        with socket.create_connection(("127.0.0.1", door.server.port)):
            pass
        await until(lambda: not door.server._listener._served)  # type: ignore[union-attr]
    ((address, error),) = refused
    assert address.startswith("127.0.0.1:") and isinstance(error, PermissionDenied)


def test_what_counts_as_turned_away() -> None:
    assert is_refusal(PermissionDenied("no")) and is_refusal(ssl.SSLCertVerificationError("no"))
    assert not any(is_refusal(error) for error in (WireError("x"), OSError("x"), ssl.SSLEOFError("x")))


async def test_stopping_needs_no_turn_of_the_loop() -> None:
    async with opened() as door:
        door.server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", door.server.port))


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


async def test_who_shows_no_certificate_or_speaks_no_tls_is_told(sides: Sides) -> None:
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    refused: list[Exception] = []
    async with opened(
        context=lambda: sides.server.socket_context(server_side=True),
        on_refused=lambda _, error: refused.append(error),
    ) as door:
        for context in (nobody, None):
            with pytest.raises(PsfError):
                await connect("127.0.0.1", door.server.port, KEY, 1, context=context, seconds=5)
        await until(lambda: len(refused) == 2)
    assert all(isinstance(error, ssl.SSLError) for error in refused) and not door.taken
