"""The pumps: frames that wait leave together, acknowledgements ride along, both pumps end together."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from psframework.errors import WireError
from psframework.rpc.session import frames, stream
from psframework.rpc.session.frames import Frame, FrameBatch
from psframework.rpc.session.session import Session
from psframework.rpc.session.stream import REPORT_SECONDS, Link, Port


class Pipe:
    """A stream whose other end is the test."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[FrameBatch] = []
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def read(self) -> Any:
        return await self.incoming.get()

    async def write(self, message: bytes) -> None:
        self.written.append(frames.decode_batch(message))
        await self.may_write.wait()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions of every kind
            await asyncio.sleep(0)


def cancel(number: int) -> Frame:
    return Frame(kind=frames.CANCEL, call=number)  # type: ignore[arg-type]


async def test_frames_that_wait_leave_in_one_message() -> None:
    port, pipe = Port(Session()), Pipe()
    link = Link(pipe, port, lambda data: ())
    port.attach(link)
    pump = asyncio.create_task(link.pump())
    pipe.may_write.clear()
    port.post(cancel(1))
    await until(lambda: len(pipe.written) == 1)
    for number in range(2, 50):
        port.post(cancel(number))
    pipe.may_write.set()
    await until(lambda: len(pipe.written) == 2)
    assert [len(batch.frames) for batch in pipe.written] == [1, 48]
    assert [batch.first for batch in pipe.written] == [1, 2]
    pipe.incoming.put_nowait(grpc.aio.EOF)
    assert await pump is None


async def test_an_acknowledgement_waits_a_moment_for_a_frame_to_ride_on() -> None:
    session, pipe = Session(), Pipe()
    port = Port(session)
    link = Link(pipe, port, lambda data: session.accept(1, 1) or ())
    port.attach(link)
    pump = asyncio.create_task(link.pump())
    await asyncio.sleep(0)  # both pumps wait
    await asyncio.sleep(0)
    pipe.incoming.put_nowait(b"")
    await until(lambda: session.received == 1)
    assert pipe.written == []
    start = asyncio.get_running_loop().time()
    await until(lambda: pipe.written)
    assert asyncio.get_running_loop().time() - start >= REPORT_SECONDS / 2
    assert pipe.written[0].acknowledged == 1 and not pipe.written[0].frames
    link.close()
    await pump


async def test_what_the_receiver_raises_ends_both_pumps() -> None:
    def receive(data: bytes) -> None:
        raise WireError("nonsense")

    pipe, port = Pipe(), Port(Session())
    link = Link(pipe, port, receive)
    before = len(asyncio.all_tasks())
    pump = asyncio.create_task(link.pump())
    pipe.incoming.put_nowait(b"x")
    assert isinstance(await pump, WireError)
    assert len(asyncio.all_tasks()) == before


async def test_cancelling_the_pump_cancels_both_halves() -> None:
    link = Link(Pipe(), Port(Session()), lambda data: ())
    before = len(asyncio.all_tasks())
    pump = asyncio.create_task(link.pump())
    await asyncio.sleep(0)
    pump.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pump
    assert len(asyncio.all_tasks()) == before
    late = Link(Pipe(), Port(Session()), lambda data: ())
    late.close()
    assert await late.pump() is None


async def test_a_lone_frame_leaves_at_once_and_the_pump_finishes_the_write() -> None:
    port, pipe = Port(Session()), Pipe()
    link = Link(pipe, port, lambda data: ())
    port.attach(link)
    pump = asyncio.create_task(link.pump())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pipe.may_write.clear()
    port.alone = True
    port.post(cancel(1))
    assert len(pipe.written) == 1 and not port.alone  # without a turn of the loop
    port.alone = True
    port.post(cancel(2))
    assert len(pipe.written) == 1  # one write at a time
    pipe.may_write.set()
    await until(lambda: len(pipe.written) == 2)
    pipe.may_write.clear()
    await asyncio.sleep(0)
    port.alone = True
    port.post(cancel(3))
    link.close()  # before the pump took the write over
    assert await pump is None


class BrokenPipe(Pipe):
    async def write(self, message: bytes) -> None:
        raise OSError("broken")


async def test_an_early_write_that_fails_ends_the_link() -> None:
    port = Port(Session())
    link = Link(BrokenPipe(), port, lambda data: ())
    port.attach(link)
    pump = asyncio.create_task(link.pump())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    port.alone = True
    port.post(cancel(1))
    assert isinstance(await pump, OSError)
    assert port.session.kept == 1


class SlowPipe(Pipe):
    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)
        await super().write(message)
        if len(self.written) == 2:
            raise asyncio.CancelledError


async def test_a_write_may_wait_for_anything_and_its_cancellation_is_the_streams_end() -> None:
    port, pipe = Port(Session()), SlowPipe()
    link = Link(pipe, port, lambda data: ())
    port.attach(link)
    port.post(cancel(1))  # before the pumps run
    pump = asyncio.create_task(link.pump())
    await until(lambda: len(pipe.written) == 1)
    port.post(cancel(2))
    assert isinstance(await pump, ConnectionError)
    port.post(cancel(3))
    await asyncio.sleep(0)
    assert len(pipe.written) == 2


@pytest.mark.parametrize("comes", [False, True])
async def test_a_socket_that_the_other_end_writes_to_must_come(
    monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    monkeypatch.setattr(stream, "SHORTCUT_SECONDS", 0.05)
    link = Link(Pipe(), Port(Session()), lambda data: ())
    pump = asyncio.create_task(link.pump())
    await asyncio.sleep(0)
    link.expect_shortcut()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if comes:
            link.shorten(ours)
            await asyncio.sleep(0.1)
            assert not pump.done()
            link.close()
            assert await pump is None
        else:
            assert isinstance(await pump, ConnectionError)
            assert not link._overdue
