"""One call to a member on its way: it keeps what a retry needs, and tells passengers how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from psframework.errors import DeadlineExceeded, NotRegistered, PeerLost, PsfError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.unpacking import Unread
from psframework.rpc.session.calls import Answer
from psframework.rpc.values.journey import Journey, Outcome
from psframework.wire.device_bytes import Part

MOST_ATTEMPTS: Final = 5
STALLED: Final = "stalled"
PASSING: Final = ("closed", "refused")
"""Reasons for which a peer may be lost and yet live."""


class Callee(Protocol):
    """A Peer, or this process's Loopback."""

    @property
    def info(self) -> PeerInfo: ...
    @property
    def lost(self) -> PeerLost | None: ...
    def begin(
        self,
        method: str,
        request: Message,
        response_type: Any,
        *,
        parts: Sequence[Part] = (),
        deadline: Deadline,
        answer: Answer,
    ) -> Any: ...
    def abandon(self, pending: Any, /) -> None: ...
    def when_lost(self, callback: Callable[[], None], /) -> Callable[[], None]: ...


class Routes(Protocol):
    """What an errand needs of whoever sends it."""

    def again(self, errand: Errand, lost: Callee) -> None:
        """Sends it once more, if the same life of the member goes on; else the errand fails."""

    def over(self, errand: Errand) -> None:
        """It has its outcome."""

    def trouble(self, name: str) -> str:
        """Why a member that is being dialled can't be reached, if that is known."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that ends with the process's agent."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What errands of one kind have in common.

    Args:
        method: "/service/method".
        response_type: class of the response.
        unpack: makes the caller's value of (response, parts, journey of the reply), or `Unread`.
        idempotent: whether a request may be sent again when it is not known to have run.
    """

    method: str
    response_type: type[Message]
    unpack: Callable[[Any, Sequence[memoryview], Journey], Any]
    idempotent: Callable[[Any], bool] = lambda request: False


def _given_up(error: BaseException) -> bool:
    """Whether only the wait has ended, not the session: the deadline passed, or the member is stalled."""
    if isinstance(error, PeerLost):
        return error.untouched is None and error.reason == STALLED
    return isinstance(error, DeadlineExceeded) and error.untouched is None


class Errand:
    """One call. It is the `Answer` of each attempt, and resolves the `Future` of the caller.

    A call that was given up still waits for its reply: what rides in it must be taken over, and let go.

    Args:
        routes: sends it.
        operation: what it does.
        request: the request message.
        journey: of the request; `parts` of it are the payload.
        deadline: of everything.

    Attributes:
        name: of the member.
        future: the caller's.
        callee: whom it was sent to; None before.
        error: why the last attempt failed.
    """

    __slots__ = ("_attempts", "_over", "_pending", "callee", "deadline", "error", "future", "incarnation",
                 "journey", "name", "operation", "parts", "request", "routes", "timer")  # fmt: skip

    def __init__(
        self,
        routes: Routes,
        operation: Operation,
        request: Message,
        journey: Journey,
        deadline: Deadline,
    ) -> None:
        self.routes = routes
        self.operation = operation
        self.request = request
        self.journey = journey
        self.parts: Sequence[Part] = journey.parts
        self.deadline = deadline
        self.name = ""
        self.incarnation: int | None = None
        self.future: Future[Any] = Future(self._abandon)
        self.callee: Callee | None = None
        self.error: PsfError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._pending: Any = None
        self._attempts = 0
        self._over = False

    @property
    def idempotent(self) -> bool:
        """Whether it may be sent again when it is not known to have run."""
        return self.operation.idempotent(self.request)

    def keep(self) -> None:
        """The caller goes on, and this was not sent yet, or may be sent again: copies the payload."""
        self.parts = [part if isinstance(part, bytes) else bytes(part) for part in self.journey.parts]

    def leave(self, callee: Callee) -> None:
        """Sends it. Whatever is wrong with it is its outcome."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._over:
            return
        operation = self.operation
        self.callee = callee
        self._attempts += 1
        try:
            self._pending = callee.begin(
                operation.method,
                self.request,
                operation.response_type,
                parts=self.parts,
                deadline=self.deadline,
                answer=self,
            )
        except Exception as error:
            self._pending = None
            self.set_exception(error)
        if self.parts and not self.idempotent:
            self.parts = ()

    def wait(self) -> None:
        """It can't leave yet: its deadline holds all the same."""
        seconds = self.deadline.seconds()
        if seconds is not None:
            self.timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    # As an Answer

    def done(self) -> bool:
        """Whether the outcome has come."""
        return self._over

    def set_result(self, reply: tuple[Any, Sequence[memoryview]], /) -> None:
        """The reply has come."""
        self._end(Outcome.ANSWERED)
        assert self.callee is not None
        arriving = Journey(self.callee.info, outgoing=False)
        arriving.about = self.journey.about
        try:
            value = self.operation.unpack(*reply, arriving)
        except Exception as error:
            arriving.end(Outcome.REFUSED)
            self._fail(error)
            return
        if arriving.before_start or type(value) is Unread:
            self.routes.spawn(self._take(value, arriving))
            return
        arriving.end(Outcome.ANSWERED)
        if not self.future.done():
            self.future.set_result(value)

    def set_exception(self, error: BaseException, /) -> None:
        """It failed: there, here, or on the way."""
        if self._pending is not None and _given_up(error):
            self._fail(self._told(error))  # but its reply may come
            return
        if isinstance(error, PeerLost) and error.untouched is None:
            if self._may_try_again(error):
                self.error, self._pending = error, None
                assert self.callee is not None
                self.routes.again(self, self.callee)
                return
            self._end(Outcome.UNKNOWN if error.may_have_run else Outcome.REFUSED)
        elif (error.untouched if isinstance(error, PsfError) else False) or self._pending is None:
            self._end(Outcome.REFUSED)
        else:
            self._end(Outcome.ANSWERED)
        self._fail(self._told(error))

    def cancel(self) -> bool:
        """The call was given up; its reply will come, unless it never left."""
        pending = self._pending
        if pending is None or not pending.number:
            self._end(Outcome.REFUSED)
        return True

    def fail(self, error: PsfError) -> None:
        """It can't be sent, or not again."""
        maybe = isinstance(self.error, PeerLost) and self.error.may_have_run
        if maybe and isinstance(error, PeerLost):
            error.may_have_run = True  # it was sent once, whatever became of the next attempt
        self._end(Outcome.UNKNOWN if maybe else Outcome.REFUSED)
        self._fail(error)

    def _told(self, error: BaseException) -> BaseException:
        """Says which member and function it was, which who noticed what is wrong may not know."""
        if isinstance(error, DeadlineExceeded) and self.deadline.expired:
            what = self.journey.about or self.operation.method
            text = f"{self.name} did not finish {what} before the deadline of the call"
            return DeadlineExceeded(f"{text}: timeout= gives it longer (60 s by default; 0: no limit)")
        if type(error) is NotRegistered and self.callee is not None:
            error.args = (f"{self.name}: {error}",)
        return error

    def _may_try_again(self, error: PeerLost) -> bool:
        if self.future.done() or error.reason not in PASSING or self._attempts >= MOST_ATTEMPTS:
            return False
        if error.may_have_run and self.journey.has_passengers:
            return False  # they may have been taken over, and can't be a second time
        return self.idempotent or (not error.may_have_run and not self.journey.parts)

    def _abandon(self) -> None:
        if self._pending is None:
            self._end(Outcome.REFUSED if self.error is None else Outcome.UNKNOWN)
        elif self.callee is not None:
            self.callee.abandon(self._pending)

    def _expire(self) -> None:
        text = f"no connection to {self.name} was made before the deadline of a call passed"
        why = self.routes.trouble(self.name) or (f"it was lost: {self.error}" if self.error else "")
        self.fail(DeadlineExceeded(f"{text}: {why}" if why else text))

    async def _take(self, value: Any, arriving: Journey) -> None:
        """What came with the reply takes its place before the caller sees it."""
        try:
            if type(value) is Unread:
                value = await value.value()
            for ready in arriving.before_start:
                await ready
        except Exception as error:
            arriving.end(Outcome.REFUSED)
            self._fail(error)
            return
        except BaseException:
            arriving.end(Outcome.REFUSED)
            self.future.cancel()
            raise
        arriving.end(Outcome.ANSWERED)
        if not self.future.done():
            self.future.set_result(value)

    def _end(self, outcome: Outcome) -> None:
        if self._over:
            return
        self._over = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.parts = ()
        self._pending = None  # it holds this, as its answer
        self.routes.over(self)
        self.journey.end(outcome)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)
