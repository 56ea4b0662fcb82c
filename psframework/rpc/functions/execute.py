"""Runs registered functions for peers: async ones as tasks, sync ones in a thread pool.

Each call is admitted before it costs anything: no more calls, and no more bytes of arguments, than this
process can hold; what is beyond is refused with a hint when to try again. Errors of users' code travel,
whatever they are; they never end the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CoroutineType, TracebackType
from typing import Any, Final, Self

from psframework.errors import ArgumentError, PeerLost, PermissionDenied, PsfError, ResourceExhausted
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.functions import context
from psframework.rpc.functions.context import Running
from psframework.rpc.functions.function_stats import End, FunctionStats
from psframework.rpc.functions.pool import ThreadPool
from psframework.rpc.functions.thread_call import PUT_OFF, ThreadCall
from psframework.rpc.registry import Entry, Kind, find
from psframework.rpc.security import audit
from psframework.rpc.security.allow import EVERYONE, AllowList
from psframework.rpc.status import detail_to_error, error_to_detail
from psframework.wire.memory import available_memory

log = logging.getLogger("psframework.rpc")

SOONEST, LATEST = 0.05, 5.0
CLOSE_SECONDS: Final = 1.0  # for functions that run in threads when the process leaves; none can be stopped
MOST_NAMES: Final = 4096
_END: Final = object()


@dataclass(frozen=True, slots=True)
class ExecuteOptions:
    """What a process takes on for its peers.

    Args:
        threads: most threads for sync functions; None: `min(32, cores + 4)`.
        max_calls: calls that may run or wait at once.
        max_bytes: bytes of large arguments that they may hold; None: half of the memory that is free now.
    """

    threads: int | None = None
    max_calls: int = 10_000
    max_bytes: int | None = None


class Admission:
    """A call that was counted in; leaving the block counts it out.

    One whose function goes on in its thread after its caller gave up is counted out when that ends.

    Attributes:
        room: for the result; None where it needs none.
        taken: called as an async function begins: it may call others, whom its arguments must not hold up.
        goes_on: whether leaving the block is not the end of the call.
    """

    __slots__ = ("_began", "_executor", "_nbytes", "_stats", "goes_on", "room", "taken")

    def __init__(self, executor: Executor, stats: FunctionStats, nbytes: int, call: Call | None) -> None:
        self.room = None if call is None else call.room
        self.taken = _nothing if call is None else call.taken
        self._executor = executor
        self._stats = stats
        self._nbytes = nbytes
        self.goes_on = False
        stats.begin()
        self._began = time.perf_counter()

    def ended(self) -> None:
        """What went on has ended. May be called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
            self._executor.loop.call_soon_threadsafe(self._leave, asyncio.CancelledError)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.goes_on:
            self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        self._executor.leave(self._nbytes)
        end = End.RETURNED
        if kind is not None:
            end = End.CANCELLED if issubclass(kind, asyncio.CancelledError | GeneratorExit) else End.RAISED
        self._stats.end(end, time.perf_counter() - self._began)


class Executor:
    """The calls that run in this process. An async context manager; leaving ends the pool.

    Args:
        options: how much to take on.
        enter: called in the context of each call before it runs (so that `psf.current_cluster()` works).
        rules: who may call what.
    """

    def __init__(
        self,
        options: ExecuteOptions = ExecuteOptions(),
        enter: Callable[[], None] | None = None,
        rules: AllowList = EVERYONE,
    ) -> None:
        self._options = options
        self._enter = enter
        self._rules = rules
        self._draining = False
        self._name = ""
        self._max_bytes = available_memory() // 2 if options.max_bytes is None else options.max_bytes
        self._stats: dict[str, FunctionStats] = {}
        self._bytes = 0
        self._running = 0
        self._pool: ThreadPool | None = None
        self.loop: asyncio.AbstractEventLoop

    @property
    def pool(self) -> ThreadPool:
        """The threads of sync functions."""
        if self._pool is None:
            raise PsfError("the executor is not open")
        return self._pool

    @property
    def running(self) -> int:
        """Calls that run or wait for a thread."""
        return self._running

    @property
    def stats(self) -> Mapping[str, FunctionStats]:
        """Figures of every function that was called, by name."""
        return self._stats

    async def __aenter__(self) -> Self:
        self._pool = ThreadPool(self._options.threads)
        self.loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:  # while the process drained they had their time
            await self._pool.close(0.0 if self._draining else CLOSE_SECONDS)

    def drain(self, name: str = "") -> None:
        """The process is about to end: refuses what comes from now on, while what runs goes on.

        Args:
            name: of this process, for the callers.
        """
        self._draining, self._name = True, name

    # Before a call

    def allow(self, name: str, peer: PeerInfo) -> Entry:
        """The function of that name, if this peer may call it.

        Raises:
            NotRegistered: there is none.
            PermissionDenied: for others only, by the function's roles or by the rules here.
        """
        entry = find(name)
        if entry.roles or self._rules:
            self.authorize(entry, peer)
        return entry

    def authorize(self, entry: Entry, peer: PeerInfo) -> None:
        """Raises PermissionDenied, and writes a line for auditors, if this peer may not call the function."""
        try:
            self._rules.check(peer, entry.name, entry.roles)
        except PermissionDenied:
            self._of(entry.name).refused += 1
            raise

    def admit(self, entry: Entry, peer: PeerInfo, nbytes: int = 0, call: Call | None = None) -> Admission:
        """Counts a call in; leaving the block that it returns is its end.

        Args:
            entry: the function.
            peer: who calls it.
            nbytes: of large arguments.
            call: begins once there is room for its result; None needs none.

        Raises:
            ResourceExhausted: too many calls, or too many bytes of arguments, are here already.
            PeerLost: this process is about to end.
        """
        if self._draining:
            self._of(entry.name).refused += 1
            text = f"{self._name or 'this process'} is ending: call another one, or again later"
            raise PeerLost(text, peer=self._name, reason="closed", may_have_run=False)
        too_large = self._bytes and self._bytes + nbytes > self._max_bytes
        if self._running >= self._options.max_calls or too_large:
            full = ResourceExhausted(
                f"{self._running} calls with {self._bytes} bytes of arguments run here; at most "
                f"{self._options.max_calls} and {self._max_bytes} may: try again later",
                retry_after=self._retry_after(entry),
            )
            audit.refused(entry.name, full, name=peer.name, role=peer.role, certificate=peer.certificate_name)
            self._of(entry.name).refused += 1
            raise full
        self._running += 1
        self._bytes += nbytes
        return Admission(self, self._of(entry.name), nbytes, call)

    def leave(self, nbytes: int) -> None:
        """For the Admission: a call has ended."""
        self._running -= 1
        self._bytes -= nbytes

    # The call itself

    async def call(
        self,
        entry: Entry,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        running: Running,
        admission: Admission,
    ) -> Any:
        """Runs a function and returns what it returns.

        Cancelling: an async function is cancelled; a sync one that waits for a thread never runs, and one
        that runs is left to its end, its result dropped.

        Raises:
            Exception: what the function raises; what is not an Exception, as a RemoteError that names it.
        """
        if self._enter is not None:
            self._enter()
        context.enter(running)
        try:
            if entry.kind is Kind.COROUTINE:
                if admission.room is not None and admission.room.is_full:
                    await admission.room.cleared()
                admission.taken()
                return await entry.target(*args, **kwargs)
            if entry.kind in (Kind.GENERATOR, Kind.ASYNC_GENERATOR):
                raise ArgumentError(
                    f"{entry.name} is a generator: call it with cluster.rpc_stream, or rref.rpc_stream()"
                )
            run = partial(entry.target, *args, **kwargs)
            result = await self._in_thread(run, entry.name, admission)
            if not isinstance(result, CoroutineType):
                return result
            admission.taken()
            return await result
        except BaseException as error:
            if may_be_raised(error):
                raise
            raise users_error(error) from None
        finally:
            running.over()

    async def iterate(
        self, entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any], running: Running
    ) -> AsyncIterator[Any]:
        """Runs a generator; when the iteration is closed it is finalized. A sync one steps in the pool."""
        if self._enter is not None:
            self._enter()
        context.enter(running)
        try:
            if entry.kind is Kind.ASYNC_GENERATOR:
                items = entry.target(*args, **kwargs)
            elif entry.kind is Kind.GENERATOR:
                items = _steps(entry.target(*args, **kwargs), self.pool, entry.name)
            else:
                raise ArgumentError(f"{entry.name} is no generator: call it with rpc_async")
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()
        except GeneratorExit:
            raise
        except BaseException as error:
            if may_be_raised(error):
                raise
            raise users_error(error) from None
        finally:
            running.over()

    async def _in_thread(self, run: Callable[[], Any], label: str, admission: Admission) -> Any:
        where, room = contextvars.copy_context(), admission.room
        call = ThreadCall(run, room)
        try:
            result = await self.pool.submit(call, where, label)
            if result is PUT_OFF and room is not None:
                async with room.turns:
                    while result is PUT_OFF:
                        await room.cleared()
                        result = await self.pool.submit(call, where, label)
            return result
        except asyncio.CancelledError:
            admission.goes_on = call.give_up(admission.ended)
            raise

    # Figures

    def _of(self, name: str) -> FunctionStats:
        stats = self._stats.get(name)
        if stats is None:
            if len(self._stats) >= MOST_NAMES:
                name = "(others)"
            stats = self._stats.setdefault(name, FunctionStats())
        return stats

    def _retry_after(self, entry: Entry) -> float:
        times = self._of(entry.name).times
        mean = times.total / times.count if times.count else SOONEST
        waiting = 1 + self.pool.queued
        return min(LATEST, max(SOONEST, mean * waiting / self.pool.limit))


async def _steps(items: Any, pool: ThreadPool, label: str) -> AsyncIterator[Any]:
    """A sync generator as an async one; each step in a thread, one after the other, in one context."""
    where = contextvars.copy_context()
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = pool.submit(partial(next, items, _END), where, label)
            item = await asyncio.shield(step)
            if item is _END:
                return
            yield item
            del item
    finally:
        close = partial(_close, items, pool, where, label)
        if step is None or step.done():
            close()
        else:  # a thread is in it: a generator can't be closed while it runs
            step.add_done_callback(close)


def _close(items: Any, pool: ThreadPool, where: contextvars.Context, label: str, step: Any = None) -> None:
    if step is not None and not step.cancelled():
        step.exception()  # nobody else looks
    try:
        closing = pool.submit(items.close, where, label)
    except PsfError:  # the process ends
        return
    closing.add_done_callback(partial(_log_close, label))


def _log_close(label: str, closing: asyncio.Future[Any]) -> None:
    error = None if closing.cancelled() else closing.exception()
    if error is not None:
        log.warning("closing the generator %s raised %r", label, error)


def _nothing() -> None:
    pass


def users_error(error: BaseException) -> BaseException:
    """What a function raised, in a form that can be raised here: itself, or a RemoteError that names it."""
    return error if may_be_raised(error) else detail_to_error(error_to_detail(error))


def may_be_raised(error: BaseException) -> bool:
    """Whether what a function raised can be raised here too, and ends nothing but its call."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0  # really cancelled, not by its own doing
    return isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration)
