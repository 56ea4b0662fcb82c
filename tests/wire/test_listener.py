"""Accepting: each connection is served apart, not too many at once, and nothing stays open afterwards."""

import asyncio
import socket
from typing import Any

import pytest

from psframework.wire import listener
from psframework.wire.listener import Listener


def listening() -> tuple[socket.socket, tuple[str, int]]:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock, sock.getsockname()


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_what_is_served_is_closed_unless_it_was_detached() -> None:
    kept: list[socket.socket] = []

    async def serve(connection: socket.socket) -> None:
        if not kept:
            kept.append(socket.socket(fileno=connection.detach()))

    sock, address = listening()
    taking = Listener(sock, serve, "test")
    with socket.create_connection(address) as first, socket.create_connection(address) as second:
        await until(lambda: kept)
        second.settimeout(5)
        assert await asyncio.to_thread(second.recv, 1) == b""
        kept[0].send(b"x")
        assert first.recv(1) == b"x"
        kept[0].close()
    await taking.close()
    assert sock.fileno() == -1


async def test_only_so_many_are_served_at_once_and_closing_ends_them() -> None:
    served, ended = 0, 0

    async def serve(_: socket.socket) -> None:
        nonlocal served, ended
        served += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    sock, address = listening()
    taking = Listener(sock, serve, "test")
    clients = [socket.create_connection(address) for _ in range(listener.MOST + 2)]
    await until(lambda: served == listener.MOST)
    await asyncio.sleep(0.02)
    assert served == listener.MOST
    await taking.close()
    assert ended == served
    for client in clients:
        client.close()


async def test_a_place_that_gets_free_is_taken() -> None:
    served: list[asyncio.Event] = []

    async def serve(_: socket.socket) -> None:
        served.append(asyncio.Event())
        await served[-1].wait()

    sock, address = listening()
    taking = Listener(sock, serve, "test")
    clients = [socket.create_connection(address) for _ in range(listener.MOST + 2)]
    await until(lambda: len(served) == listener.MOST)
    for place in list(served[:2]):
        place.set()
    await until(lambda: len(served) == listener.MOST + 2)
    await taking.close()
    for client in clients:
        client.close()


async def test_stopping_needs_no_turn_of_the_loop() -> None:
    async def serve(_: socket.socket) -> None:
        await asyncio.Event().wait()

    sock, address = listening()
    taking = Listener(sock, serve, "test")
    with socket.create_connection(address) as client:
        await until(lambda: taking._served)
        taking.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        await taking.close()
        assert client.recv(1) == b""


class Exhausted:
    """A listening socket, while the process has no descriptor left."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.tried = 0

    def accept(self) -> Any:
        self.tried += 1
        if self.tried == 1:
            raise OSError("too many open files")
        return self._socket.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


async def test_without_descriptors_it_waits_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PAUSE_SECONDS", 0.01)
    served: list[socket.socket] = []

    async def serve(connection: socket.socket) -> None:
        served.append(connection)

    sock, address = listening()
    taking = Listener(Exhausted(sock), serve, "test")  # type: ignore[arg-type]
    with socket.create_connection(address):
        await until(lambda: served)
    await taking.close()
    assert sock.fileno() == -1
