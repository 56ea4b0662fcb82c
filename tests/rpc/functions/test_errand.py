"""An errand: what its passengers are told, whatever becomes of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import DeadlineExceeded, PeerLost, RemoteError, ResourceExhausted
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.errand import Errand, Operation
from psframework.rpc.values.journey import Journey, Outcome


class Sent:
    """What `begin` returns."""

    def __init__(self, number: int) -> None:
        self.number = number


class Callee:
    """A peer that does what the test says."""

    info = PeerInfo("bob", "worker", "", 1)
    lost: PeerLost | None = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.parts: list[Any] = []
        self.abandoned = 0
        self.number = 1

    def begin(self, *_: object, parts: Any, answer: Errand, **__: object) -> Sent:
        if self.error is not None:
            raise self.error
        self.parts.append(parts)
        self.answer = answer
        return Sent(self.number)

    def abandon(self, pending: Sent) -> None:
        self.abandoned += 1
        self.answer.cancel()


class Routes:
    def __init__(self) -> None:
        self.sent_again: list[Errand] = []
        self.ended: list[Errand] = []

    def again(self, errand: Errand, lost: Any) -> None:
        self.sent_again.append(errand)

    def over(self, errand: Errand) -> None:
        self.ended.append(errand)

    def trouble(self, name: str) -> str:
        return ""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.create_task(work)


def unpack(reply: StringValue, parts: Any, journey: Journey) -> str:
    return reply.value


def make(idempotent: bool = False, parts: tuple[bytes, ...] = ()) -> tuple[Errand, Routes]:
    routes, journey = Routes(), Journey()
    journey.parts.extend(parts)
    operation = Operation("/s/m", StringValue, unpack, lambda _: idempotent)
    return Errand(routes, operation, StringValue(), journey, Deadline.after(5)), routes


def lost(may_have_run: bool, reason: str = "closed") -> PeerLost:
    return PeerLost("gone", peer="bob", reason=reason, may_have_run=may_have_run)


def answered(error: Any, untouched: bool) -> Any:
    error.untouched = untouched
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (lost(True), Outcome.UNKNOWN),
        (lost(False, "lease"), Outcome.REFUSED),
        (answered(ResourceExhausted("full"), True), Outcome.REFUSED),
        (answered(ResourceExhausted("raised by the function"), False), Outcome.ANSWERED),
        (answered(lost(True), False), Outcome.ANSWERED),
        (answered(RemoteError("x"), False), Outcome.ANSWERED),
    ],
)
async def test_errors(error: Any, outcome: Outcome) -> None:
    errand, routes = make()
    callee = Callee()
    errand.leave(callee)
    assert not errand.done()
    errand.set_exception(error)
    assert errand.done() and errand.journey.outcome is outcome and routes.ended == [errand]
    with pytest.raises(type(error)):
        await errand.future


async def test_a_result() -> None:
    errand, _ = make()
    errand.leave(Callee())
    errand.set_result((StringValue(value="x"), []))
    assert await errand.future == "x" and errand.journey.outcome is Outcome.ANSWERED


async def test_what_never_left() -> None:
    errand, _ = make()
    errand.leave(Callee(ResourceExhausted("backlog")))
    with pytest.raises(ResourceExhausted):
        await errand.future
    assert errand.journey.outcome is Outcome.REFUSED
    errand, _ = make()
    errand.future.cancel()
    assert errand.journey.outcome is Outcome.REFUSED
    errand.leave(callee := Callee())
    assert callee.parts == []


async def test_a_call_that_was_given_up_still_takes_its_reply() -> None:
    errand, _ = make()
    errand.leave(callee := Callee())
    errand.future.cancel()
    assert callee.abandoned == 1 and not errand.done()
    errand.set_result((StringValue(value="late"), []))
    assert errand.journey.outcome is Outcome.ANSWERED and errand.future.cancelled()


async def test_a_deadline_here_does_not_say_what_happened_there() -> None:
    errand, _ = make()
    errand.leave(Callee())
    errand.set_exception(DeadlineExceeded("here"))
    errand.cancel()
    assert not errand.done() and errand.journey.outcome is None
    with pytest.raises(DeadlineExceeded):
        await errand.future
    errand.set_exception(answered(DeadlineExceeded("there"), True))
    assert errand.journey.outcome is Outcome.REFUSED
    errand, _ = make()
    callee = Callee()
    callee.number = 0  # it waits for the window
    errand.leave(callee)
    errand.set_exception(DeadlineExceeded("here"))
    errand.cancel()
    assert errand.journey.outcome is Outcome.REFUSED
    errand.future.exception()


async def test_what_may_be_sent_again() -> None:
    for idempotent, parts, error, again in (
        (True, (b"x",), lost(True), True),
        (True, (), lost(True, "lease"), False),
        (False, (), lost(True), False),
        (False, (), lost(False), True),
        (False, (b"x",), lost(False), False),
    ):
        errand, routes = make(idempotent, parts)
        errand.leave(callee := Callee())
        errand.set_exception(error)
        assert (routes.sent_again == [errand]) is again
        if again:
            errand.leave(callee)
            assert [list(each) for each in callee.parts] == [list(parts)] * 2
            errand.fail(lost(False))
            assert errand.journey.outcome is (Outcome.UNKNOWN if error.may_have_run else Outcome.REFUSED)
        failure = errand.future.exception() if errand.future.done() else None
        if again:
            assert isinstance(failure, PeerLost)
            assert failure.may_have_run is error.may_have_run  # of any attempt, not of the last one


async def test_what_came_with_a_reply_takes_its_place_first() -> None:
    routes = Routes()
    gate = asyncio.Event()

    async def settle() -> None:
        await gate.wait()

    def carry(reply: StringValue, parts: Any, journey: Journey) -> str:
        journey.before_start.append(settle())
        return reply.value

    errand = Errand(
        routes, Operation("/s/m", StringValue, carry), StringValue(), Journey(), Deadline.after(5)
    )
    errand.leave(Callee())
    errand.set_result((StringValue(value="x"), []))
    await asyncio.sleep(0)
    assert not errand.future.done()
    gate.set()
    assert await errand.future == "x"


async def test_whatever_is_wrong_with_it_ends_it() -> None:
    errand, routes = make()
    errand.leave(Callee(ValueError("no such number of microseconds")))
    assert errand.done() and errand.journey.outcome is Outcome.REFUSED and routes.ended == [errand]
    with pytest.raises(ValueError, match="microseconds"):
        await errand.future
