"""`@psf.batched`: calls of one item each are gathered, and run as one call with a list of them.

A forward of 64 rows costs little more than one of a single row. Calls wait until enough of them are there, or
until the first has waited long enough; while a batch runs, the next one gathers.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from psframework.errors import ArgumentError
from psframework.rpc.compute import compute
from psframework.rpc.functions import context, scope
from psframework.rpc.functions.execute import users_error

Function = Callable[..., Any]
Batched = Callable[..., Coroutine[Any, Any, Any]]
MAX_SIZE: Final = 64
MAX_WAIT: Final = 0.002


@dataclass(slots=True, eq=False)
class Waiting:
    """One call: its item, since when it waits, where its result goes, the batches that wait for it, and the
    scope that it is part of."""

    item: Any
    since: float
    outcome: asyncio.Future[Any]
    inside: frozenset[Batch] = frozenset()
    scope: object = None


@dataclass(slots=True, eq=False)
class Batch:
    """One batch that runs, or has run."""

    batcher: Batcher
    over: bool = False


# The batches that wait for what runs in this context.
_inside: contextvars.ContextVar[frozenset[Batch]] = contextvars.ContextVar("psframework_batches")


class Room:
    """Calls that wait for their batch, and the decision when it is due; time is an argument.

    Args:
        max_size: calls of one batch at most.
        max_wait: seconds that the first of them waits for others at most.
    """

    def __init__(self, max_size: int, max_wait: float) -> None:
        self._max_size = max_size
        self._max_wait = max_wait
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether a whole batch waits."""
        return len(self._waiting) >= self._max_size

    def add(self, call: Waiting) -> None:
        """One more."""
        self._waiting.append(call)

    def discard(self, call: Waiting) -> None:
        """Nobody waits for this one any more; nothing happens if its batch runs."""
        if call in self._waiting:
            self._waiting.remove(call)

    def due_in(self, now: float) -> float:
        """Seconds until the batch of what waits should run; 0 or less: at once."""
        return 0.0 if self.full or not self._waiting else self._waiting[0].since + self._max_wait - now

    def take(self) -> list[Waiting]:
        """The next batch: the oldest call, and the oldest others of its scope, since scopes don't mix."""
        waiting, batch, others = self._waiting, list[Waiting](), list[Waiting]()
        while waiting and len(batch) < self._max_size:
            call = waiting.popleft()
            (batch if not batch or call.scope == batch[0].scope else others).append(call)
        waiting.extendleft(reversed(others))
        return batch


class Batcher:
    """Runs the batches of one function, one after the other, while there are any.

    Args:
        run: a batch: a list of items -> as many results.
        room: where calls wait.
    """

    def __init__(self, run: Function, room: Room) -> None:
        self._run = run
        self._room = room
        self._full = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def call(self, owner: Sequence[Any], item: Any) -> Any:
        """The result for one item; `owner` is the object whose method it is, or empty."""
        loop, inside = asyncio.get_running_loop(), _inside.get(frozenset())
        if any(batch.batcher is self and not batch.over for batch in inside):
            raise ArgumentError("a batched function that awaits itself would wait for ever: split it in two")
        call = Waiting(item, loop.time(), loop.create_future(), inside, scope.current())
        self._room.add(call)
        if self._work is None:  # it ends with the last call
            self._full = asyncio.Event()
            self._work = loop.create_task(self._batches(owner), name="psf-batches", context=context.nobodys())
            self._work.add_done_callback(self._end)
        if self._room.full:
            self._full.set()
        try:
            return await call.outcome
        except asyncio.CancelledError:
            self._room.discard(call)
            raise

    async def _batches(self, owner: Sequence[Any]) -> None:
        while self._room:
            await self._gather()
            if batch := self._room.take():
                await self._settle(owner, batch)
        self._work = None  # here, so that a call between this and the end of the task begins another one

    def _end(self, work: asyncio.Task[None]) -> None:
        if self._work is not work:
            return
        self._work = None
        while self._room:  # it was cancelled: the process ends
            for call in self._room.take():
                call.outcome.cancel()

    async def _gather(self) -> None:
        now = asyncio.get_running_loop().time
        self._full.clear()
        while (seconds := self._room.due_in(now())) > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._full.wait()
            except TimeoutError:
                return

    async def _settle(self, owner: Sequence[Any], batch: Sequence[Waiting]) -> None:
        """Runs a batch, and tells each call how it went."""
        this = Batch(self)
        _inside.set(frozenset({this}).union(*[call.inside for call in batch]))
        scope.resume(batch[0].scope)
        try:
            results = await self._run(*owner, [call.item for call in batch])
            outcomes = _one_each(results, len(batch))
        except BaseException as error:
            failure = users_error(error)
            for call in batch:
                _tell(call.outcome, failure)
            if isinstance(failure, asyncio.CancelledError):
                raise
        else:
            for call, outcome in zip(batch, outcomes):
                _tell(call.outcome, outcome)
        finally:
            this.over = True


@overload
def batched(function: Function, /) -> Batched: ...
@overload
def batched(*, max_size: int = MAX_SIZE, max_wait: float = MAX_WAIT) -> Callable[[Function], Batched]: ...
def batched(
    function: Function | None = None, /, *, max_size: int = MAX_SIZE, max_wait: float = MAX_WAIT
) -> Batched | Callable[[Function], Batched]:
    """Gathers calls of a function or method: callers pass one item each, it gets a list, and returns as many.

        @psf.remote
        @psf.batched(max_size=64, max_wait=0.002)
        def predict(images): return model(np.stack(images)).numpy().argmax(1)

        digit = await cluster.rpc_async("worker-0", predict, args=(image,))

    The result has an item for each call, in their order: a list, an array, a tensor. An exception among them
    is raised by its own call; one that the function raises, by all. Batches of a function, or of a method of
    one object, run one after the other: plain functions in the compute thread, async ones on the loop. A
    batch that runs is left to its end, whoever is still there to hear of it. It is nobody's call in
    particular: it has no deadline, and no `psf.current_caller()`. Calls from inside of different
    distributed-autograd contexts are in different batches. It may not await its own function.

    Args:
        function: takes a list of items; a method takes `self` as well.
        max_size: calls of one batch at most.
        max_wait: seconds that the first of them waits for others at most; 0: whatever is there goes.

    Raises:
        ArgumentError: no such function, size or time.
    """
    if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 1:
        raise ArgumentError(f"max_size={max_size!r}: calls of one batch, at least 1")
    if not 0 <= max_wait < 3600:
        raise ArgumentError(f"max_wait={max_wait!r}: seconds, such as {MAX_WAIT}")

    def decorate(function: Function) -> Batched:
        return _decorate(function, lambda: Room(max_size, max_wait))

    return decorate if function is None else decorate(function)


def _decorate(function: Function, room: Callable[[], Room]) -> Batched:
    count = _parameters(function)
    run = function if inspect.iscoroutinefunction(function) else functools.partial(compute, function)
    batchers: dict[int, Batcher] = {}  # by identity: objects may be equal, or have no hash

    @functools.wraps(function)
    async def call(*args: Any) -> Any:
        if len(args) != count:
            given = len(args) - count + 1
            raise ArgumentError(f"{function.__qualname__} takes one item a call, not {given}: pass a tuple")
        *owner, item = args
        key = id(owner[0]) if owner else 0
        batcher = batchers.get(key)
        if batcher is None:
            if owner:
                _when_gone(owner[0], functools.partial(batchers.pop, key))
            batcher = batchers[key] = Batcher(run, room())
        return await batcher.call(owner, item)

    return call


def _when_gone(owner: object, forget: Callable[[], object]) -> None:
    try:
        weakref.finalize(owner, forget).atexit = False
    except TypeError:
        kind = type(owner).__qualname__
        raise ArgumentError(
            f"{kind} has __slots__ without '__weakref__', which batched methods need"
        ) from None


def _parameters(function: Function) -> int:
    """How many parameters it has: 1, or 2 for a method."""
    if not callable(function) or inspect.isclass(function) or inspect.isgeneratorfunction(function):
        raise ArgumentError(
            f"{function!r} can't be batched: write a function of a list, which returns a list"
        )
    parameters = inspect.signature(function).parameters.values()
    count = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
    if inspect.isasyncgenfunction(function) or count not in (1, 2) or count != len(parameters):
        raise ArgumentError(
            f"{function.__qualname__} can't be batched: it must take one list, and nothing else"
        )
    return count


def _one_each(results: Any, count: int) -> list[Any]:
    try:
        outcomes = [results[index] for index in range(len(results))]
    except (TypeError, KeyError, IndexError):
        raise TypeError(f"a batched function returned a {type(results).__name__}, not a list") from None
    if len(outcomes) != count:
        raise ValueError(
            f"a batched function got {count} items and returned {len(outcomes)}: one each, please"
        )
    return outcomes


def _tell(waiting: asyncio.Future[Any], outcome: Any) -> None:
    if waiting.done():
        return
    if isinstance(outcome, asyncio.CancelledError):
        waiting.cancel()
    elif isinstance(outcome, BaseException):
        waiting.set_exception(users_error(outcome))
    else:
        waiting.set_result(outcome)
