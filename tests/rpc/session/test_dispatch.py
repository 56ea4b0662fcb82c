"""Handlers of every shape get exactly one reply each."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from structlog.testing import capture_logs

from psframework.errors import ArgumentError, DeadlineExceeded, RemoteError, WireError
from psframework.rpc.call import Call
from psframework.rpc.deadline import Deadline
from psframework.rpc.service import Method
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame


class Shapes:
    name = "test.Shapes"

    def methods(self) -> Sequence[Method]:
        text = (StringValue, StringValue)
        return [
            Method("Hidden", *text, lambda *both: self.slow(*both)),  # noqa: PLW0108 - hides that it is async
            Method("Partial", *text, functools.partial(self.slow)),
            Method("Nothing", *text, self.nothing),
            Method("Inside", *text, self.inside),
        ]

    async def slow(self, request: StringValue, call: Call) -> StringValue:
        await asyncio.sleep(0)
        return request

    async def nothing(self, request: StringValue, call: Call) -> Any:
        return None

    async def inside(self, request: StringValue, call: Call) -> StringValue:
        """Handlers may use timeouts and task groups: they run in a task of their own."""
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            task = group.create_task(self.slow(request, call))
        return task.result()


@pytest.fixture
async def peer(office: Any) -> Any:
    office.agent._home.methods.add(Shapes())
    return await office.peer()


async def ask(office: Any, peer: Any, method: str) -> str:
    reply, _ = await peer.call(
        f"/test.Shapes/{method}", StringValue(value="x"), StringValue, deadline=Deadline.after(5)
    )
    return str(reply.value)


@pytest.mark.parametrize("method", ["Hidden", "Partial", "Inside"])
async def test_async_functions_in_every_disguise(office: Any, peer: Any, method: str) -> None:
    assert await ask(office, peer, method) == "x"


async def test_a_handler_without_an_answer_is_an_error_of_its_own(office: Any, peer: Any) -> None:
    with pytest.raises(AttributeError):
        await ask(office, peer, "Nothing")
    assert await ask(office, peer, "Hidden") == "x"


async def test_ids_must_grow(office: Any) -> None:
    peer = await office.peer()
    await office.echo(peer, "x")
    dispatcher = office.agent.peers[0]._dispatcher
    with pytest.raises(WireError, match="grow"):
        dispatcher.request(Frame(kind=frames.REQUEST, call=1))  # type: ignore[arg-type]
    assert dispatcher.last == 1


async def test_cancelled_before_its_first_step_a_call_still_gets_its_reply(office: Any) -> None:
    peer = await office.peer()
    await office.echo(peer, "x")
    call = asyncio.create_task(office.echo(peer, "y", "Hold"))
    await asyncio.sleep(0)
    call.cancel()  # request and cancellation leave in one message
    with pytest.raises(asyncio.CancelledError):
        await call
    await office.until(lambda: peer.statistics()["made"] == 0)
    await office.until(lambda: office.agent.idle)
    assert len(office.agent.peers[0]._dispatcher) == 0


async def test_a_failed_call_leaves_one_line_in_the_log(office: Any) -> None:
    peer = await office.peer()
    with capture_logs() as lines:
        with pytest.raises(ValueError):
            await office.echo(peer, "x", "Raise")
    (line,) = [line for line in lines if line["event"] == "call failed"]
    assert (line["method"], line["peer"], line["code"]) == ("/test.Desk/Raise", "client", "UNKNOWN")


async def test_cancelling_what_does_not_run_changes_nothing(office: Any) -> None:
    peer = await office.peer()
    await office.echo(peer, "x")
    dispatcher = office.agent.peers[0]._dispatcher
    dispatcher.cancel(1)
    dispatcher.release(77)
    assert len(dispatcher) == 0 and await office.echo(peer, "y") == "y"


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bad:
    """Handlers that raise what handlers should not, at once or in their task."""

    name = "test.Bad"

    def methods(self) -> Sequence[Method]:
        text = (StringValue, StringValue)
        return [
            Method("Now", *text, self.now),
            Method("Later", *text, self.later),
            Method("Huge", *text, lambda *_: StringValue(value="x" * (frames.MAX_MESSAGE // 2 + 1))),
        ]

    def now(self, request: StringValue, call: Call) -> StringValue:
        kinds = {
            "odd": Odd("odd"),
            "mute": Mute(),
            "cancelled": asyncio.CancelledError(),
            "exit": SystemExit(3),
        }
        raise kinds[request.value]

    async def later(self, request: StringValue, call: Call) -> StringValue:
        return self.now(request, call)


@pytest.mark.parametrize("method", ["Now", "Later"])
@pytest.mark.parametrize("error", ["odd", "mute", "cancelled", "exit"])
async def test_whatever_a_handler_raises_is_its_reply_and_harms_no_other(
    office: Any, method: str, error: str
) -> None:
    office.agent.mount(Bad())
    peer = await office.peer()
    calls = [
        peer.call(path, StringValue(value=error), StringValue, deadline=Deadline.NEVER)
        for path in (f"/test.Bad/{method}", "/test.Desk/Echo")  # both in one message
    ]
    async with asyncio.timeout(5):
        failed, other = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(failed, RemoteError | DeadlineExceeded)
    assert other[0].value == error  # type: ignore[index]
    assert peer.lost is None and peer.statistics()["made"] == 0


async def test_a_reply_that_no_message_can_hold_is_an_error_of_its_call(office: Any) -> None:
    office.agent.mount(Bad())
    peer = await office.peer()
    with pytest.raises(ArgumentError, match="reply_parts"):
        await peer.call("/test.Bad/Huge", StringValue(), StringValue, deadline=Deadline.after(5))
    assert await office.echo(peer, "still there") == "still there"
