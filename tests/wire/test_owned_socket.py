"""A socket of the loop's own: what its callbacks raise ends it, and so does a path that swallows bytes."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from psframework.wire import owned_socket
from psframework.wire.owned_socket import OwnedSocket


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions of every kind
            await asyncio.sleep(0.001)


class Echo(OwnedSocket):
    """Sends back what comes; raises at "!"."""

    mode = ContextVar("mode", default="none")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.failures: list[BaseException] = []
        self.modes: list[str] = []
        self.room = 0
        self._read_on()

    def _readable(self) -> None:
        self.modes.append(self.mode.get())
        data = self._socket.recv(100)
        if data == b"!":
            raise ValueError("nonsense")
        self._socket.send(data)

    def _writable(self) -> None:
        self.room += 1
        self.modes.append(self.mode.get())
        self._wait_for_room(False)

    def _broke(self, error: BaseException) -> None:
        self.failures.append(error)
        self.close()


async def test_what_a_callback_raises_is_told_once_and_ends_it() -> None:
    ours, other = socket.socketpair()
    with other:
        echo = Echo(ours)
        other.setblocking(False)
        other.send(b"x")
        await until(lambda: echo.modes)
        assert other.recv(1) == b"x" and not echo.failures
        other.send(b"!")
        await until(lambda: ours.fileno() < 0)
        echo._fail(ValueError("too late"))
        assert [str(error) for error in echo.failures] == ["nonsense"]
        assert other.recv(1) == b""


async def test_who_closes_it_hears_nothing_and_may_do_so_again() -> None:
    ours, other = socket.socketpair()
    with other:
        echo, descriptor = Echo(ours), ours.fileno()
        echo._wait_for_room(True)
        echo.close()
        echo.close()
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(descriptor) and not loop.remove_writer(descriptor)
        assert not echo.failures and other.recv(1) == b""


async def test_callbacks_run_in_no_context_of_whoever_opened_it() -> None:
    Echo.mode.set("of the opener")
    ours, other = socket.socketpair()
    with other:
        echo = Echo(ours)
        echo._wait_for_room(True)
        await until(lambda: echo.room)
        other.send(b"x")
        await until(lambda: len(echo.modes) == 2)
        assert echo.modes == ["none", "none"]
        echo.close()


def info(unacknowledged: int, milliseconds: int) -> bytes:
    return bytes(8) + struct.pack("=13I", *[0] * 4, unacknowledged, *[0] * 7, milliseconds)


def test_a_path_is_stuck_only_if_bytes_are_under_way_and_no_word_has_come() -> None:
    assert owned_socket.is_stuck(info(1, 20_001))
    assert not owned_socket.is_stuck(info(1, 20_000)) and not owned_socket.is_stuck(info(0, 1_000_000))


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="Linux only")
async def test_a_watch_tells_once_and_lets_slow_readers_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_socket, "LOOK_SECONDS", 0.001)
    told: list[BaseException] = []
    looked: list[bytes] = []
    real = owned_socket.is_stuck
    monkeypatch.setattr(owned_socket, "is_stuck", lambda data: looked.append(data) or real(data))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as ours:
            ours.setblocking(False)
            watch = owned_socket.Watch(ours, told.append)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 20))  # nobody reads
            await until(lambda: len(looked) > 1)
            assert not told
            monkeypatch.setattr(owned_socket, "is_stuck", lambda _: True)
            await until(lambda: told)
            assert isinstance(told[0], ConnectionError)
            watch.close()
            again = owned_socket.Watch(ours, told.append)
            again.close()
            await asyncio.sleep(0.05)
            assert len(told) == 1
