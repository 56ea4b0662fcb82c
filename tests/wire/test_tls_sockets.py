"""TLS handshakes: in a thread, one step at a time, and nothing is closed under a step."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

import pytest

from psframework.rpc.security import certificates
from psframework.rpc.security.identity import server_name
from psframework.rpc.security.tls import TlsFiles
from psframework.wire.tls_sockets import Handshakes, TlsSocket

NAME = server_name("parameter-server", "ps0")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions of every kind
            await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    certificates.init(folder)
    return TlsFiles(certificates.issue(folder, "parameter-server", "ps0"))


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


async def test_many_handshakes_leave_the_loop_alone_and_take_one_thread(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = TlsSocket.do_handshake, set()

    def step(self: TlsSocket) -> None:
        if self.server_side:
            threads.add(threading.current_thread().name)
        real(self)

    monkeypatch.setattr(TlsSocket, "do_handshake", step)
    served, dialling = Handshakes(), Handshakes()
    context = files.socket_context(server_side=True), files.socket_context(server_side=False)
    pairs = [pair() for _ in range(20)]
    async with asyncio.timeout(20):
        ends = await asyncio.gather(
            *(served.secure(theirs, context[0], server_side=True) for _, theirs in pairs),
            *(dialling.secure(ours, context[1], server_name=NAME) for ours, _ in pairs),
        )
    assert len(threads) == 1 and threading.current_thread().name not in threads
    for end in ends:
        end.close()
    for handshakes in (served, dialling):
        handshakes.close()


async def test_a_socket_given_up_in_mid_step_is_closed_after_it(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()
    stepped: list[TlsSocket] = []

    def step(self: TlsSocket) -> None:
        stepped.append(self)
        began.set()
        goes_on.wait(5)
        raise ssl.SSLWantReadError

    monkeypatch.setattr(TlsSocket, "do_handshake", step)
    handshakes, context = Handshakes(), files.socket_context(server_side=True)
    ours, theirs = pair()
    queued_ours, queued_theirs = pair()
    with ours, queued_ours:
        first = asyncio.create_task(handshakes.secure(theirs, context, server_side=True))
        await until(began.is_set)
        second = asyncio.create_task(handshakes.secure(queued_theirs, context, server_side=True))
        await asyncio.sleep(0)
        for task in (first, second):
            task.cancel()
        await asyncio.wait({first, second})
        assert first.cancelled() and second.cancelled()
        assert stepped[0].fileno() >= 0
        assert queued_ours.recv(1) == b""  # its step never begins
        goes_on.set()
        await until(lambda: stepped[0].fileno() < 0)
    assert len(stepped) == 1
    handshakes.close()


async def test_who_does_not_speak_tls_is_told_apart_and_closed(files: TlsFiles) -> None:
    handshakes = Handshakes()
    ours, theirs = pair()
    with ours:
        ours.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            await handshakes.secure(theirs, files.socket_context(server_side=True), server_side=True)
        with contextlib.suppress(ConnectionResetError):
            while ours.recv(100):  # an alert, then the end
                pass
    handshakes.close()
