"""The thread pool: results in any order, slow calls, contexts, errors of every kind, and its end."""

import asyncio
import contextvars
import functools
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator

import pytest

from psframework.errors import PsfError, ResourceExhausted
from psframework.rpc.functions.pool import ThreadPool, default_threads

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPool]:
    made = ThreadPool(4)
    yield made
    await made.close()
    assert made.threads == 0


async def test_results_come_back_in_batches(pool: ThreadPool) -> None:
    wakes = 0
    loop = asyncio.get_running_loop()
    call = loop.call_soon_threadsafe

    def counted(*args: object) -> asyncio.Handle:
        nonlocal wakes
        wakes += 1
        return call(*args)  # type: ignore[arg-type]

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
    try:
        futures = [pool.submit(lambda index=index: index * 2) for index in range(5000)]  # type: ignore[misc]
        assert [await future for future in futures] == [2 * index for index in range(5000)]
    finally:
        del loop.call_soon_threadsafe
    assert wakes < 500


async def test_others_take_what_waits_behind_a_slow_call(pool: ThreadPool) -> None:
    gate = threading.Event()
    before = pool.submit(lambda: "before")
    slow = pool.submit(gate.wait)
    after = [pool.submit(lambda: "after") for _ in range(100)]
    assert await asyncio.wait_for(before, 5) == "before"  # not held back for the batch
    assert await asyncio.wait_for(asyncio.gather(*after), 5) == ["after"] * 100
    assert not slow.done() and pool.threads <= 4
    gate.set()
    assert await slow


async def test_while_all_threads_hang_the_loop_sleeps_and_the_first_to_go_on_wakes_it(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = ThreadPool._look_again

    def counted(self: ThreadPool) -> None:
        nonlocal looks
        looks += 1
        look(self)

    monkeypatch.setattr(ThreadPool, "_look_again", counted)
    gates = [threading.Event() for _ in range(5)]
    hanging = [pool.submit(gate.wait) for gate in gates[:4]]
    quick = [pool.submit(lambda: "quick") for _ in range(3)]
    last = pool.submit(gates[4].wait)
    await asyncio.sleep(0.5)
    assert looks < 30  # not one each millisecond
    assert pool._look is not None
    pool._look.cancel()  # as if it were far away
    gates[0].set()  # its thread takes the quick ones, then hangs again: their results must not wait for it
    assert await asyncio.wait_for(asyncio.gather(hanging[0], *quick), 5) == [True, *["quick"] * 3]
    for gate in gates:
        gate.set()
    assert await asyncio.gather(*hanging, last) == [True] * 5


async def test_a_bounded_number_runs_at_once(pool: ThreadPool) -> None:
    gate, running = threading.Event(), []

    def work() -> None:
        running.append(threading.get_ident())
        gate.wait()

    futures = [pool.submit(work) for _ in range(10)]
    async with asyncio.timeout(5):
        while len(running) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert len(running) == 4 and pool.threads == 4 and pool.queued == 6
    gate.set()
    await asyncio.gather(*futures)
    assert len(running) == 10 and len(set(running)) <= 4
    assert 4 < default_threads() <= 32


async def test_it_runs_in_the_callers_context(pool: ThreadPool) -> None:
    VARIABLE.set("mine")
    assert await pool.submit(VARIABLE.get) == "mine"
    other = contextvars.Context()
    other.run(VARIABLE.set, "other")
    assert await pool.submit(VARIABLE.get, other) == "other"
    await pool.submit(lambda: VARIABLE.set("changed there"))
    assert VARIABLE.get() == "mine"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt("x"), SystemExit(3)])
async def test_whatever_is_raised_arrives(pool: ThreadPool, error: BaseException) -> None:
    def fail() -> None:
        raise error

    future = pool.submit(fail)
    await asyncio.wait({future})
    assert future.exception() is error
    assert await pool.submit(lambda: 1) == 1


async def test_what_would_end_the_awaiting_coroutine_is_wrapped(pool: ThreadPool) -> None:
    def leave() -> None:
        raise GeneratorExit("x")

    with pytest.raises(RuntimeError, match="GeneratorExit: x"):
        await pool.submit(leave)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.submit(lambda: next(iter(())))


async def test_a_cancelled_call_that_has_not_begun_never_runs(pool: ThreadPool) -> None:
    gate, ran = threading.Event(), []
    blockers = [pool.submit(gate.wait) for _ in range(4)]
    future = pool.submit(lambda: ran.append(1))
    future.cancel()
    gate.set()
    await asyncio.gather(*blockers)
    await pool.submit(lambda: None)
    assert ran == []


async def test_nothing_keeps_arguments_and_results_alive(pool: ThreadPool) -> None:
    class Thing:
        pass

    thing = Thing()
    seen = weakref.ref(thing)
    result = await pool.submit(lambda kept=thing: kept)  # type: ignore[misc]
    del thing, result
    await pool.submit(lambda: None)
    gc.collect()
    assert seen() is None


async def test_an_error_keeps_no_arguments_alive_not_even_until_the_next_collection(pool: ThreadPool) -> None:
    class Thing:
        pass

    def fails(thing: Thing) -> None:
        raise ValueError("no")

    async def call() -> weakref.ref[Thing]:
        thing = Thing()
        with pytest.raises(ValueError, match="no"):
            await pool.submit(functools.partial(fails, thing))
        return weakref.ref(thing)

    gc.disable()
    try:
        seen = await call()
        await pool.submit(lambda: None)
        assert seen() is None
    finally:
        gc.enable()


async def test_closing_fails_what_has_not_begun_and_joins() -> None:
    pool = ThreadPool(1)
    began, gate = threading.Event(), threading.Event()

    def slow() -> str:
        began.set()
        gate.wait()
        return "done"

    running = pool.submit(slow)
    waiting = pool.submit(lambda: None)
    await asyncio.to_thread(began.wait)
    closing = asyncio.create_task(pool.close())
    with pytest.raises(PsfError, match="closed before"):
        await waiting
    gate.set()
    await closing
    assert await running == "done" and pool.threads == 0
    with pytest.raises(PsfError, match="closed"):
        pool.submit(lambda: None)


async def test_a_function_that_never_ends_does_not_hold_up_the_end() -> None:
    pool = ThreadPool(1)
    gate = threading.Event()
    future = pool.submit(gate.wait)
    start = time.monotonic()
    await pool.close(timeout=0.05)
    assert time.monotonic() - start < 5 and not future.done()
    gate.set()
    async with asyncio.timeout(5):
        while pool.threads:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psframework.rpc.functions.pool.IDLE_SECONDS", 0.02)
    pool = ThreadPool(2)
    await pool.submit(lambda: None)
    async with asyncio.timeout(5):
        while pool.threads:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert await pool.submit(lambda: 3) == 3
    await pool.close()


async def test_hammering_loses_nothing(pool: ThreadPool) -> None:
    async def client(count: int) -> int:
        total = 0
        for index in range(count):
            total += await pool.submit(lambda index=index: index)  # type: ignore[misc]
            if index % 50 == 0:
                await asyncio.sleep(0.0001)
        return total

    assert await asyncio.gather(*(client(300) for _ in range(20))) == [300 * 299 // 2] * 20


async def test_cancelled_calls_do_not_pile_up_behind_one_that_hangs() -> None:
    class Thing:
        pass

    pool, gate, held = ThreadPool(1), threading.Event(), []
    hanging = pool.submit(gate.wait)
    alive = pool.submit(lambda: "alive")
    for _ in range(1000):
        thing = Thing()
        held.append(weakref.ref(thing))
        pool.submit(functools.partial(id, thing)).cancel()
    del thing
    async with asyncio.timeout(5):
        while pool.queued > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not any(ref() for ref in held)
    gate.set()
    assert await hanging and await alive == "alive"
    await pool.close()


async def test_a_system_without_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, gate, began = ThreadPool(2), threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(ResourceExhausted, match="no thread"):
            pool.submit(lambda: None)
    assert pool.queued == 0 and pool.threads == 0
    slow = pool.submit(lambda: began.set() or gate.wait())  # type: ignore[func-returns-value]
    await asyncio.to_thread(began.wait)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        behind = pool.submit(lambda: "behind")
        await asyncio.wait({behind}, timeout=0.02)
        assert pool.threads == 1
    assert await asyncio.wait_for(behind, 5) == "behind"
    gate.set()
    assert await slow
    await pool.close(timeout=5)
    assert pool.threads == 0


async def test_a_call_at_the_very_moment_when_the_last_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()

    class Slow(set[threading.Thread]):
        def discard(self, thread: threading.Thread) -> None:
            ending.set()
            time.sleep(0.05)
            super().discard(thread)

    monkeypatch.setattr("psframework.rpc.functions.pool.IDLE_SECONDS", 0.01)
    pool = ThreadPool(1)
    pool._threads = Slow()
    await pool.submit(lambda: None)
    while not ending.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await asyncio.wait_for(pool.submit(lambda: 1), 5) == 1
    await pool.close()


async def test_a_result_does_not_wait_for_the_call_that_its_thread_took_next() -> None:
    """A thread ends one call and takes the last that waits between two looks at the same moment."""
    pool = ThreadPool(1)
    began, go, end = threading.Event(), threading.Event(), threading.Event()
    settle, looks = pool._settle, 0

    def settle_then_let_go() -> None:
        nonlocal looks
        settle()
        looks += 1
        if looks > 2 and began.is_set() and not go.is_set():
            go.set()
            time.sleep(0.05)  # the loop stands while the thread goes on

    pool._settle = settle_then_let_go  # type: ignore[method-assign]
    first = pool.submit(lambda: (began.set(), go.wait(), "first")[-1])
    second = pool.submit(end.wait)
    assert await asyncio.wait_for(first, 5) == "first"
    assert not second.done()
    end.set()
    assert await second
    await pool.close()
