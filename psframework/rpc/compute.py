"""The process's one compute thread, so that the event loop never waits for work of over a millisecond.

    gradient = await compute(model_step, x, y)

Calls run one after another, in the order in which they were made, each in a copy of its caller's contextvars.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from psframework.backend import follow
from psframework.errors import PsfError

P = ParamSpec("P")
R = TypeVar("R")


class _Job:
    """One call on its way through the thread."""

    __slots__ = ("context", "future", "loop", "mailbox", "run")

    def __init__(self, loop: asyncio.AbstractEventLoop, mailbox: _Mailbox, run: Callable[[], Any]):
        self.loop = loop
        self.mailbox = mailbox
        self.future: asyncio.Future[Any] = loop.create_future()
        self.context = contextvars.copy_context()
        self.run: Callable[[], Any] | None = run


class _Mailbox:
    """Results on their way to one loop; the first wakes it, further ones until it looks cost no wake-up."""

    def __init__(self) -> None:
        self._outcomes: deque[tuple[_Job, Any, BaseException | None]] = deque()
        self._woken = False

    def post(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self._outcomes.append((job, result, error))
        if not self._woken:
            self._woken = True
            try:
                job.loop.call_soon_threadsafe(self._settle)
            except RuntimeError:
                self._outcomes.clear()  # that loop is closed: nobody waits any more

    def _settle(self) -> None:
        self._woken = False  # before looking: what is appended from here on either is seen or wakes again
        while self._outcomes:
            job, result, error = self._outcomes.popleft()
            future = job.future
            del job.future  # frames of an error refer to the job: with the future in it, they would be cycles
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class ComputeThread:
    """A thread with a queue. It starts at the first call and ends with `close`.

    Args:
        name: of the thread, as debuggers show it.
    """

    def __init__(self, name: str = "psf-compute"):
        self._name = name
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox]
        self._mailboxes = weakref.WeakKeyDictionary()

    async def call(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `fn(*args, **kwargs)` in the thread and returns what it returns, or raises what it raises.

        Cancelling the wait: a function that has not begun never runs. One that has begun runs to its end,
        since no thread can be interrupted; its result is dropped, and whatever is called next waits for it,
        so later work never sees half of its effects.

        Raises:
            PsfError: the thread was closed first.
        """
        with self._lock:
            if self._closed:
                raise PsfError("the compute thread is closed")
            loop = asyncio.get_running_loop()
            mailbox = self._mailboxes.setdefault(loop, _Mailbox())
            job = _Job(loop, mailbox, lambda: fn(*args, **kwargs))
            self._queue.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        result: R = await job.future
        return result

    def close(self, timeout: float | None = 10.0) -> None:
        """Lets the running function end, fails those that have not begun, and joins the thread.

        Args:
            timeout: seconds to wait for the running function; a longer one is left behind.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
            self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            if job is None or self._closed:
                return self._fail_rest(job)
            if not job.future.cancelled():
                _run(job)
            del job  # the thread must not keep the last result alive while it waits

    def _fail_rest(self, job: _Job | None) -> None:
        while True:
            if job is not None:
                job.mailbox.post(job, None, PsfError("the compute thread was closed before this call began"))
            if self._queue.empty():
                return
            job = self._queue.get()


def _run(job: _Job) -> None:
    run, job.run = job.run, None  # arguments are freed as soon as the function returns
    assert run is not None
    try:
        result = job.context.run(follow, run)  # and on the caller's current device
    except StopIteration as error:  # a Future refuses it, and the awaiting side would wait for ever
        wrapped = RuntimeError(f"a computed function raised StopIteration: {error}")
        wrapped.__cause__ = error
        job.mailbox.post(job, None, wrapped)
    except BaseException as error:
        job.mailbox.post(job, None, error)
    else:
        job.mailbox.post(job, result, None)


_lock = threading.Lock()
_thread: ComputeThread | None = None


async def compute(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs `fn(*args, **kwargs)` in the process's compute thread (`ComputeThread.call`).

    Args:
        fn: an ordinary function; it must not wait for the network.

    Returns:
        What `fn` returns.

    Raises:
        Exception: what `fn` raises, with its traceback.
    """
    return await _current().call(fn, *args, **kwargs)


def close() -> None:
    """Ends the process's compute thread; the next `compute` starts another."""
    global _thread
    with _lock:
        thread, _thread = _thread, None
    if thread is not None:
        thread.close()


def _current() -> ComputeThread:
    global _thread
    with _lock:
        if _thread is None:
            _thread = ComputeThread()
        return _thread


# A daemon thread inside NumPy while the interpreter is torn down can crash the process; so join it before.
atexit.register(close)
