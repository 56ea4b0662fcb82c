"""Calls of a process to itself: the same copies, errors and ends as over a wire."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import (
    DeadlineExceeded,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    RemoteError,
    ResourceExhausted,
)
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.service import Method, MethodTable
from psframework.rpc.session.loopback import Loopback


@pytest.fixture
async def local(office: Any) -> Any:
    loopback = Loopback(PeerInfo("me", "worker", "", 1), MethodTable([office.desk]), 1 << 30)
    yield loopback
    await loopback.close()


async def call(local: Loopback, method: str, value: str = "x", seconds: float = 5.0) -> str:
    request = StringValue(value=value)
    deadline = Deadline.after(seconds)
    reply, _ = await local.call(f"/test.Desk/{method}", request, StringValue, deadline=deadline)
    assert reply is not request
    return reply.value


async def test_handlers_run(local: Loopback) -> None:
    assert [await call(local, method) for method in ("Echo", "EchoLater")] == ["x", "x"]
    assert await call(local, "CallBack", "abc") == "abcend"
    assert len(local) == 0


async def test_parts_are_copied_both_ways(local: Loopback) -> None:
    array = np.arange(100_000, dtype=np.uint8)
    wanted = array.tobytes()
    answer = asyncio.create_task(
        local.call("/test.Desk/Mirror", Chunk(), Chunk, parts=[array.data, b"x"], deadline=Deadline.after(5))
    )
    await asyncio.sleep(0)
    array[:] = 0
    _, (first, second) = await answer
    assert bytes(first) == wanted and bytes(second) == b"x"


async def test_errors(local: Loopback) -> None:
    with pytest.raises(RemoteError, match="no such thing") as caught:
        await call(local, "Raise")
    assert isinstance(caught.value, ValueError) and caught.value.untouched
    with pytest.raises(NotRegistered):
        await call(local, "Ekko")
    with pytest.raises(PermissionDenied):
        await call(local, "OnlyBoss")


async def test_deadlines_cancellation_and_the_end(local: Loopback, office: Any) -> None:
    with pytest.raises(DeadlineExceeded):
        await call(local, "Hold", seconds=0.05)
    task = asyncio.create_task(call(local, "Hold", "y"))
    await office.until(lambda: "y" in office.desk.ran)
    task.cancel()
    await office.until(lambda: office.desk.cancelled == ["x", "y"])
    told: list[str] = []
    local.when_lost(lambda: told.append("a"))
    local.when_lost(lambda: told.append("b"))()
    last = asyncio.create_task(call(local, "Hold", "z"))
    await office.until(lambda: "z" in office.desk.ran)
    await local.close()
    with pytest.raises(PeerLost):
        await last
    with pytest.raises(PeerLost):
        await call(local, "Echo")
    assert told == ["a"] and office.desk.cancelled[-1] == "z" and len(local) == 0


async def test_arguments_of_calls_that_wait_are_bounded(office: Any) -> None:
    local = Loopback(PeerInfo("me", "worker", "", 1), MethodTable([office.desk]), backlog_bytes=1000)

    def mirror(nbytes: int) -> Any:
        return local.call(
            "/test.Desk/Mirror",
            Chunk(),
            Chunk,
            parts=[memoryview(bytearray(nbytes))],
            deadline=Deadline.after(5),
        )

    first = asyncio.create_task(mirror(2000))  # one alone always passes
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="2000 bytes") as full:
        await mirror(1)
    assert full.value.retry_after > 0
    await first
    assert local.kept == 0
    await mirror(1)
    await local.close()


class Stubborn:
    """A service that pays no heed to being cancelled."""

    name = "test.Desk"

    def __init__(self) -> None:
        self.began, self.gate = asyncio.Event(), asyncio.Event()

    def methods(self) -> Sequence[Method]:
        return [Method("Wait", StringValue, StringValue, self.wait)]

    async def wait(self, request: StringValue, call: Any) -> StringValue:
        self.began.set()
        while not self.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.gate.wait()
        return request


async def test_the_end_does_not_wait_for_what_goes_on() -> None:
    stubborn = Stubborn()
    local = Loopback(PeerInfo("me", "worker", "", 1), MethodTable([stubborn]), 1 << 30)
    asking = asyncio.create_task(call(local, "Wait"))
    await stubborn.began.wait()
    async with asyncio.timeout(5):
        await local.close()
    with pytest.raises(PeerLost):
        await asking
    stubborn.gate.set()
