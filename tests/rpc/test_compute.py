"""The compute thread: order, contextvars, cancellation, errors, and what it keeps alive."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from psframework.backend import scopes
from psframework.errors import PsfError
from psframework.rpc import compute as module
from psframework.rpc.compute import ComputeThread, compute

LEVEL: contextvars.ContextVar[int] = contextvars.ContextVar("level", default=0)


@pytest.fixture
def thread():
    made = ComputeThread("test-compute")
    yield made
    made.close()
    assert made._thread is None or not made._thread.is_alive()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0)


async def test_it_runs_in_one_other_thread_in_order(thread):
    order = []

    def work(i):
        order.append(i)
        return threading.current_thread().name, i

    results = await asyncio.gather(*(thread.call(work, i) for i in range(500)))
    assert order == list(range(500)) and results == [("test-compute", i) for i in range(500)]


async def test_arguments_results_and_errors(thread):
    assert await thread.call(divmod, 7, 2) == (3, 1)
    assert await thread.call(dict, a=1) == {"a": 1}
    with pytest.raises(ZeroDivisionError) as caught:
        await thread.call(lambda: 1 // 0)
    assert "<lambda>" in str(caught.traceback[-1])
    with pytest.raises(RuntimeError, match="StopIteration"):
        await thread.call(next, iter(()))


async def test_contextvars_go_in_and_do_not_come_out(thread):
    LEVEL.set(3)

    def work():
        seen = LEVEL.get()
        LEVEL.set(9)
        return seen

    assert await thread.call(work) == 3 and LEVEL.get() == 3


async def test_the_loop_is_free_meanwhile(thread):
    release = threading.Event()
    task = asyncio.ensure_future(thread.call(release.wait, 10))
    await asyncio.sleep(0)
    release.set()  # only reached if the loop goes on
    assert await task is True


async def test_cancelled_before_it_began_it_never_runs(thread):
    started, release, ran = threading.Event(), threading.Event(), []
    first = asyncio.ensure_future(thread.call(lambda: (started.set(), release.wait(10))))
    second = asyncio.ensure_future(thread.call(ran.append, 1))
    await until(started.is_set)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    await thread.call(int)
    assert ran == []


async def test_cancelled_while_it_runs_the_next_call_waits_for_its_end(thread):
    started, release, log = threading.Event(), threading.Event(), []

    def work():
        started.set()
        release.wait(10)
        log.append("end")

    task = asyncio.ensure_future(thread.call(work))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    following = asyncio.ensure_future(thread.call(log.append, "next"))
    release.set()
    await following
    assert log == ["end", "next"]


async def test_a_finished_result_does_not_wait_for_a_slow_neighbour(thread):
    started, release = threading.Event(), threading.Event()
    first = asyncio.ensure_future(thread.call(int))
    slow = asyncio.ensure_future(thread.call(lambda: (started.set(), release.wait(10))))
    assert await asyncio.wait_for(first, 5) == 0
    assert not slow.done()
    release.set()
    await slow


async def test_nothing_is_kept_alive(thread):
    class Big:
        pass

    argument = Big()
    result = await thread.call(lambda value: Big(), argument)
    seen = [weakref.ref(argument), weakref.ref(result)]
    del argument, result
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


async def test_an_error_keeps_no_arguments_alive_not_even_until_the_next_collection(thread):
    class Big:
        pass

    def fails(big):
        raise ValueError("no")

    async def call():
        big = Big()
        with pytest.raises(ValueError, match="no"):
            await thread.call(fails, big)
        return weakref.ref(big)

    gc.disable()
    try:
        seen = await call()
        await thread.call(int)
        assert seen() is None
    finally:
        gc.enable()


async def test_closing_fails_what_has_not_begun():
    thread = ComputeThread()
    started, release = threading.Event(), threading.Event()
    running = asyncio.ensure_future(thread.call(lambda: (started.set(), release.wait(10), 5)[-1]))
    waiting = asyncio.ensure_future(thread.call(int))
    await until(started.is_set)
    closer = threading.Thread(target=thread.close)
    closer.start()
    await until(lambda: thread._closed)
    release.set()
    assert await running == 5
    with pytest.raises(PsfError):
        await waiting
    with pytest.raises(PsfError):
        await thread.call(int)
    closer.join()


async def test_the_process_has_one_and_gets_another_after_close():
    names = {await compute(threading.get_ident) for _ in range(3)}
    assert len(names) == 1
    module.close()
    assert await compute(int) == 0
    module.close()


def test_a_loop_that_closed_meanwhile_harms_nobody(thread):
    started, release = threading.Event(), threading.Event()

    async def leave():
        task = asyncio.ensure_future(thread.call(lambda: (started.set(), release.wait(10))))
        await until(started.is_set)
        task.cancel()

    asyncio.run(leave())
    release.set()
    assert asyncio.run(thread.call(int)) == 0


def test_a_process_ends_cleanly_without_close():
    code = (
        "import asyncio; from psframework.rpc.compute import compute; print(asyncio.run(compute(len, 'abc')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


async def test_the_current_device_comes_along():
    """CuPy's belongs to a thread; ours to the task, and follows its work."""
    log = []

    def enter():
        log.append(threading.current_thread().name)
        return lambda: log.append("left")

    before = threading.current_thread().name
    scopes.push("cuda", 1, enter)
    try:
        assert str(await compute(lambda: scopes.innermost().number)) == "1"
    finally:
        scopes.pop()
    assert log == [before, "psf-compute", "left", "left"]
    module.close()
