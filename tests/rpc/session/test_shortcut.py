"""The Unix socket in place of gRPC's stream: messages whole and in order, and both ways end together."""

import asyncio
import gc
import os
import socket
import struct
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from psframework.errors import PermissionDenied, PsfError, WireError
from psframework.rpc.session import frames
from psframework.rpc.session.shortcut import READ_BYTES, Shortcut
from psframework.wire import shm
from psframework.wire.handover import new_key, offer_socket

pytestmark = pytest.mark.skipif(not shm.available(), reason="descriptors are passed on Linux only")


class Ends:
    """A shortcut, and the raw socket at its other end."""

    def __init__(self, receive: Callable[[bytes], Any] | None = None) -> None:
        ours, self.other = socket.socketpair()
        self.other.setblocking(False)
        self.came: list[bytes] = []
        self.failures: list[BaseException] = []
        self.shortcut = Shortcut(ours, receive or self.take, self.failures.append)

    def take(self, message: bytes) -> tuple[None, ...]:
        self.came.append(message)
        return ()

    def __enter__(self) -> "Ends":
        self.shortcut.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shortcut.close()
        self.other.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions of every kind
            await asyncio.sleep(0.0005)


def packed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(message)) + message for message in messages)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
async def test_messages_arrive_whole_however_they_are_cut(step: int) -> None:
    messages = [b"", b"a", b"bc" * 40, b"", bytes(range(256))]
    data = packed(*messages)
    with Ends() as ends:
        for start in range(0, len(data), step):
            ends.other.send(data[start : start + step])
            await asyncio.sleep(0)
        await until(lambda: len(ends.came) == len(messages))
        assert ends.came == messages and not ends.failures


async def test_a_large_message_leaves_as_there_is_room_and_then_says_so() -> None:
    message = os.urandom(3 << 20)
    sent: list[BaseException | None] = []
    with Ends() as ends:
        ends.shortcut.send(message, sent.append)
        assert not sent  # no socket holds so much
        came = bytearray()
        while len(came) < len(message) + 4:
            try:
                came += ends.other.recv(1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0)
        await until(lambda: sent)
        assert sent == [None] and bytes(came) == packed(message)
        ends.shortcut.send(b"small", sent.append)
        assert sent == [None, None]  # at once
        loop = asyncio.get_running_loop()
        large = loop.create_task(loop.sock_sendall(ends.other, packed(message, b"after")))
        await until(lambda: len(ends.came) == 2)
        await large
        assert ends.came == [message, b"after"]


async def test_a_message_that_lets_others_go_first_keeps_its_place() -> None:
    turns: list[str] = []

    def receive(message: bytes) -> Iterator[None]:
        turns.append(f"{message.decode()} begins")
        asyncio.get_running_loop().call_soon(turns.append, "other work")
        yield
        turns.append(f"{message.decode()} ends")

    with Ends(receive) as ends:
        ends.other.send(packed(b"a"))
        await until(lambda: "a begins" in turns)
        ends.other.send(packed(b"b"))
        await until(lambda: "b ends" in turns)
    assert turns == ["a begins", "other work", "a ends", "b begins", "other work", "b ends"]


async def test_what_is_received_runs_in_no_context_of_whoever_opened_the_session() -> None:
    mode = ContextVar("mode", default="none")
    seen: list[str] = []

    def receive(message: bytes) -> tuple[None, ...]:
        seen.append(mode.get())
        return ()

    mode.set("of the opener")
    with Ends(receive) as ends:
        ends.other.send(packed(b"x"))
        await until(lambda: seen)
    assert seen == ["none"]


async def test_the_other_ends_close_and_nonsense_are_told_once() -> None:
    with Ends() as ends:
        ends.other.close()
        await until(lambda: ends.failures)
        assert isinstance(ends.failures[0], ConnectionError)
    with Ends() as ends:
        ends.other.send(struct.pack("<I", frames.MAX_MESSAGE + 1))
        await until(lambda: ends.failures)
        assert isinstance(ends.failures[0], WireError) and not ends.came
    sent: list[BaseException | None] = []
    with Ends() as ends:
        ends.other.close()
        ends.shortcut.send(b"x", sent.append)
        assert isinstance(ends.failures[0], OSError) and not sent
    with Ends() as ends:
        ends.shortcut.close()
        await asyncio.sleep(0)
        assert ends.other.recv(10) == b"" and not ends.failures  # who closes it knows


async def test_what_the_receiver_raises_ends_it() -> None:
    def receive(message: bytes) -> None:
        raise WireError("nonsense")

    with Ends(receive) as ends:
        ends.other.send(packed(b"x", b"y"))
        await until(lambda: ends.failures)
        assert [str(error) for error in ends.failures] == ["nonsense"]


async def test_closing_while_much_waits_leaves_nothing() -> None:
    with Ends() as ends:
        sent: list[BaseException | None] = []
        ends.shortcut.send(bytes(4 * READ_BYTES * 64), sent.append)
        ends.shortcut.drop()
        descriptor = ends.shortcut._socket.fileno()
        ends.shortcut.close()
        ends.shortcut.close()  # harmless
        await asyncio.sleep(0)
        assert not sent
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(descriptor) and not loop.remove_writer(descriptor)


# As the session uses it


def shortcut_of(peer: Any) -> Any:
    link = peer._port.link
    return link._shortcut if link is not None and link._moved and link._arrives_there else None


async def both_moved(office: Any, peer: Any) -> None:
    await office.until(lambda: shortcut_of(peer) and shortcut_of(office.agent.peers[0]))


async def test_calls_on_one_host_take_the_shortcut_and_others_do_not(office: Any) -> None:
    peer = await office.peer()
    await both_moved(office, peer)
    assert await office.echo(peer, "x") == "x"
    big = "y" * (2 << 20)  # more than the socket holds, and than one batch
    answers = await asyncio.gather(*(office.echo(peer, big) for _ in range(5)), office.echo(peer, "z"))
    assert answers == [big] * 5 + ["z"]
    far = await office.peer(name="far", options=office.options("inline,striped"))
    assert await office.echo(far, "x") == "x" and shortcut_of(far) is None


async def test_a_socket_that_breaks_breaks_the_connection_which_resumes(office: Any) -> None:
    peer = await office.peer()
    await both_moved(office, peer)
    for side in (peer, office.agent.peers[0]):
        before = peer._port.link.number
        held = asyncio.create_task(office.echo(peer, "held", "Hold"))
        await office.desk.started.wait()
        shortcut_of(side)._socket.shutdown(socket.SHUT_RDWR)
        await office.until(lambda before=before: peer._port.link and peer._port.link.number > before)
        office.desk.gate.set()
        assert await held == "held"
        await both_moved(office, peer)  # the new connection has one of its own
        office.desk.gate.clear()
        office.desk.started.clear()
    assert office.desk.ran == ["held", "held"]
    assert peer.statistics()["made"] == 0


async def test_a_connection_that_ends_is_freed_without_the_collector(office: Any) -> None:
    peer = await office.peer()
    await both_moved(office, peer)
    assert await office.echo(peer, "x") == "x"
    links = [weakref.ref(side._port.link) for side in (peer, office.agent.peers[0])]
    gc.collect()
    gc.disable()
    try:
        await peer.close()
        await office.until(lambda: not any(link() for link in links))
    finally:
        gc.enable()


async def test_no_stranger_and_no_old_connection_gets_one(office: Any) -> None:
    peer = await office.peer()
    await both_moved(office, peer)
    server = office.agent.peers[0]
    path, key = office.agent._home.segment_path, server.segments.key
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(PermissionDenied):
        await offer_socket(path, new_key(), 1, theirs)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(WireError, match="connection 7 takes no socket"):
        await offer_socket(path, key, 7, theirs)
    with socket.socket() as tcp, pytest.raises(PsfError):
        await offer_socket(path, key, 1, tcp)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await offer_socket(path, key, 1, theirs)  # one more for a connection that has one: closed at once
        theirs.close()
        ours.setblocking(False)
        await office.until(lambda: peer_closed(ours))
    assert await office.echo(peer, "x") == "x"


def peer_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
