"""The thread pool of sync functions: calls cross into it, and results back, in batches.

    result = await pool.submit(function)

`run_in_executor` wakes a thread for each call and the event loop for each result. Here one thread takes
everything that waits, and all its results go back with one wake-up of the loop. More threads are woken only
when a look after a millisecond finds that nothing moved: whatever runs is slow, so the others take what waits
behind it, and results that were held back for the batch are handed over too. While nothing moves the looks
become rare, and whichever thread moves first says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from psframework.backend import follow
from psframework.errors import PsfError, ResourceExhausted

LOOK_SECONDS: Final = 0.001
IDLE_SECONDS: Final = 60.0
"""A thread that had nothing to do for so long ends."""

SWEEP_SECONDS: Final = 0.1
"""Calls that were cancelled while they waited are forgotten so often."""


def default_threads() -> int:
    """How many threads a pool has at most, unless told otherwise."""
    return min(32, (os.cpu_count() or 1) + 4)


class Job:
    """One call on its way through the pool. Cancelling its future before a thread took it drops it."""

    __slots__ = ("context", "error", "future", "label", "result", "run")

    def __init__(
        self,
        run: Callable[[], Any],
        context: contextvars.Context,
        future: asyncio.Future[Any],
        label: str,
    ) -> None:
        self.run: Callable[[], Any] | None = run
        self.context = context
        self.future = future
        self.label = label
        self.result: Any = None
        self.error: BaseException | None = None

    def work(self) -> None:
        """Runs in a thread of the pool."""
        run, self.run = self.run, None  # arguments are freed as soon as the function returns
        assert run is not None
        try:
            self.result = self.context.run(follow, run)  # and on the caller's current device
        except (StopIteration, GeneratorExit) as error:  # these would end whatever awaits, not reach it
            kind = type(error).__name__
            self.error = RuntimeError(f"a function in the thread pool raised {kind}: {error}")
            self.error.__cause__ = error
        except BaseException as error:
            self.error = error

    def settle(self) -> None:
        """Runs on the loop. Afterwards it refers to nothing: frames of an error refer to it, in a cycle that
        would keep the arguments alive.
        """
        future, result, error = self.future, self.result, self.error
        del self.future, self.result, self.error
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class ThreadPool:
    """Threads of one event loop, started as they are needed.

    Args:
        threads: most threads; None: `default_threads`.
        name: of the threads, as debuggers show them.
    """

    def __init__(self, threads: int | None = None, name: str = "psf-pool") -> None:
        self._limit = default_threads() if threads is None else threads
        if self._limit < 1:
            raise PsfError(f"a pool of {threads} threads can run nothing: give it one or more")
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Job] = deque()
        self._done: deque[Job] = deque()
        self._started = 0  # jobs that a thread took, so far: progress
        self._seen = -1
        self._idle: list[threading.Lock] = []  # of threads that sleep; releasing one wakes its thread
        self._busy = 0  # threads that are awake
        self._threads: set[threading.Thread] = set()
        self._swept = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._pause = LOOK_SECONDS  # until the next look
        self._mutex = threading.Lock()
        self._closed = False

    @property
    def threads(self) -> int:
        """Threads that exist at the moment."""
        return len(self._threads)

    @property
    def limit(self) -> int:
        """Most threads there will be."""
        return self._limit

    @property
    def queued(self) -> int:
        """Calls that no thread has taken yet, with those that were cancelled a moment ago."""
        return len(self._queue)

    def waiting(self) -> Counter[str]:
        """The same, by the label that they were submitted with."""
        return Counter(job.label for job in list(self._queue))

    def submit(
        self,
        run: Callable[[], Any],
        context: contextvars.Context | None = None,
        label: str = "",
    ) -> asyncio.Future[Any]:
        """Has `run()` called in a thread. Call this on the loop.

        Cancelling the future: a function that no thread has taken yet never runs. One that has begun runs to
        its end, since no thread can be interrupted; its result is dropped.

        Args:
            run: the function.
            context: to run it in; None: a copy of the current one.
            label: what `waiting` counts it under.

        Returns:
            A future with what `run` returns or raises.

        Raises:
            PsfError: the pool is closed.
            ResourceExhausted: the system has no thread for it.
        """
        if self._closed:
            raise PsfError("the thread pool is closed")
        future = self._loop.create_future()
        self._queue.append(Job(run, context or contextvars.copy_context(), future, label))
        if not self._busy:
            self._wake(1)
            if not self._threads:
                self._queue.pop()
                raise ResourceExhausted("no thread can be started here: try again later")
        elif self._look is None:
            self._look_soon()
        return future

    async def close(self, timeout: float = 10.0) -> None:
        """Fails what has not begun, waits for what runs, and joins the threads.

        Args:
            timeout: seconds to wait for running functions; those that take longer are left behind.
        """
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._look is not None:
            self._look.cancel()
        while self._queue:
            job = self._queue.popleft()
            job.error = PsfError("the thread pool was closed before this call began")
            job.settle()
        for lock in idle:
            lock.release()
        end = time.monotonic() + timeout
        while self._threads and time.monotonic() < end:
            self._settle()
            await asyncio.sleep(LOOK_SECONDS)
        self._settle()

    # On the loop

    def _look_soon(self) -> None:
        self._seen, self._pause = self._started, LOOK_SECONDS
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def _moved(self) -> None:
        """A thread goes on after nothing has moved for a while."""
        self._settle()
        if self._look is not None:
            self._look.cancel()
            self._look_soon()

    def _look_again(self) -> None:
        """Something waits since a millisecond: helps if nothing moved, and looks again while it may wait."""
        self._look = None
        waiting = len(self._queue)  # first: a thread may end one call, and take the last that waits
        self._settle()
        if not waiting or self._closed:
            return
        if self._seen == self._started:
            self._wake(waiting)
            self._pause = min(2 * self._pause, SWEEP_SECONDS)
        else:
            self._pause = LOOK_SECONDS
        if (now := self._loop.time()) - self._swept > SWEEP_SECONDS:
            self._swept = now
            self._sweep()
        self._seen = self._started
        self._look = self._loop.call_later(self._pause, self._look_again)

    def _sweep(self) -> None:
        """Forgets cancelled calls: behind functions that hang they would pile up, with their arguments."""
        queue = self._queue
        for _ in range(len(queue)):
            try:
                job = queue.popleft()  # threads take from here meanwhile
            except IndexError:
                break
            if not job.future.cancelled():
                queue.append(job)

    def _wake(self, count: int) -> None:
        with self._mutex:
            for _ in range(count):
                if self._idle:
                    self._busy += 1
                    self._idle.pop().release()
                elif len(self._threads) < self._limit:
                    self._busy += 1
                    number = len(self._threads)
                    thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
                    self._threads.add(thread)
                    try:
                        thread.start()
                    except RuntimeError:  # the system has no more: those that are there must do
                        self._threads.discard(thread)
                        self._busy -= 1
                        return
                else:
                    return

    def _settle(self) -> None:
        done = self._done
        while done:
            done.popleft().settle()

    # In the threads

    def _work(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        try:
            while True:
                self._drain()
                with self._mutex:
                    if self._queue and not self._closed:
                        continue
                    self._busy -= 1
                    if self._closed:
                        return
                    self._idle.append(gate)
                if not gate.acquire(timeout=IDLE_SECONDS) and self._retire(gate):
                    return
        finally:
            self._threads.discard(threading.current_thread())

    def _drain(self) -> None:
        queue, done = self._queue, self._done
        job = None
        while True:
            try:
                job = queue.popleft()
            except IndexError:
                break
            self._started += 1
            if not job.future.cancelled():
                job.work()
                done.append(job)
                if self._pause > LOOK_SECONDS and queue:
                    self._tell(self._moved)
        del job  # the thread must not keep the last result alive while it sleeps
        if done:
            self._tell(self._settle)

    def _tell(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(what)

    def _retire(self, gate: threading.Lock) -> bool:
        """Whether nobody woke this thread at the last moment."""
        with self._mutex:
            if gate in self._idle:
                self._idle.remove(gate)
                self._threads.discard(threading.current_thread())  # here: another one may take its place
                return True
        gate.acquire()  # it was woken meanwhile
        return False
