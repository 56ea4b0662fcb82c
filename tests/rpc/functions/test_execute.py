"""The executor: admission, allow-lists, figures, generators in threads."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from psframework.errors import (
    NotRegistered,
    PeerLost,
    PermissionDenied,
    PsfError,
    RemoteError,
    ResourceExhausted,
)
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import Caller, Running, current_caller
from psframework.rpc.functions.execute import ExecuteOptions, Executor
from psframework.rpc.registry import Entry, Kind
from psframework.rpc.security.allow import AllowList

PEER = PeerInfo("ann", "worker", "", 1)
RUNNING = Running(Caller(PEER), Deadline.NEVER)
ENTERED: contextvars.ContextVar[str] = contextvars.ContextVar("ENTERED", default="no")


def entry(target: Callable[..., Any]) -> Entry:
    return Entry(f"test.{target.__name__}", target, Kind.of(target))


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    limits = ExecuteOptions(threads=2, max_calls=3, max_bytes=1000)
    async with Executor(limits, enter=lambda: void(ENTERED.set("yes"))) as made:
        yield made


def void(_: object) -> None: ...


async def test_functions_run_in_their_context(executor: Executor) -> None:
    def sync(x: int) -> tuple[int, str, str, bool]:
        main = threading.current_thread() is threading.main_thread()
        return x, current_caller().name, ENTERED.get(), main

    async def coroutine(x: int) -> tuple[int, str, str, bool]:
        await asyncio.sleep(0)
        return sync(x)

    def hidden(x: int) -> Any:
        return coroutine(x)

    async def run(target: Callable[..., Any]) -> Any:
        with executor.admit(entry(target), PEER) as admission:
            return await executor.call(entry(target), (1,), {}, RUNNING, admission)

    for target, main in ((sync, False), (coroutine, True), (hidden, True)):
        assert await asyncio.create_task(run(target)) == (1, "ann", "yes", main)
    assert ENTERED.get() == "no"


async def test_calls_are_counted_in_and_out(executor: Executor) -> None:
    target = entry(void)
    with executor.admit(target, PEER, 600):
        with pytest.raises(ResourceExhausted, match="bytes") as full:
            executor.admit(target, PEER, 600)
        assert full.value.retry_after > 0
        with executor.admit(target, PEER, 300), executor.admit(target, PEER):
            with pytest.raises(ResourceExhausted, match="3 calls"):
                executor.admit(target, PEER)
            assert executor.running == 3
    with executor.admit(target, PEER, 5000):  # alone, whatever its size
        pass
    with pytest.raises(ValueError), executor.admit(target, PEER):
        raise ValueError
    with pytest.raises(asyncio.CancelledError), executor.admit(target, PEER):
        raise asyncio.CancelledError
    stats = executor.stats["test.void"]
    assert (stats.calls, stats.errors, stats.cancelled, stats.refused) == (6, 1, 1, 2)
    assert executor.running == 0


async def test_rules_and_roles() -> None:
    async with Executor(rules=AllowList(["trainer:called.*"])) as executor:
        with pytest.raises(PermissionDenied, match="--allow"):
            executor.allow("called.add", PEER)
        assert executor.allow("called.add", PeerInfo("bob", "trainer", "", 1)).name == "called.add"
        with pytest.raises(NotRegistered):
            executor.allow("called.nothing", PEER)
        assert executor.stats["called.add"].refused == 1


async def test_an_executor_that_is_not_open() -> None:
    closed = Executor()
    with pytest.raises(PsfError, match="not open"):
        await closed.call(entry(void), (1,), {}, RUNNING, closed.admit(entry(void), PEER))


async def test_names_are_bounded(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psframework.rpc.functions.execute.MOST_NAMES", 5)
    for index in range(10):
        with executor.admit(Entry(str(index), void, Kind.FUNCTION), PEER):
            pass
    assert len(executor.stats) == 6 and executor.stats["(others)"].calls == 5


async def test_a_generator_is_closed_while_a_thread_is_in_it(executor: Executor) -> None:
    gate, events, entered = threading.Event(), list[str](), threading.Event()

    def slow() -> Any:
        try:
            yield 1
            entered.set()
            gate.wait(10)
            yield 2
        finally:
            events.append(threading.current_thread().name)

    async def consume() -> None:
        async for _ in executor.iterate(entry(slow), (), {}, RUNNING):
            pass

    task = asyncio.create_task(consume())
    await asyncio.to_thread(entered.wait)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() and events == []
    gate.set()
    async with asyncio.timeout(5):
        while not events:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert events[0].startswith("psf-pool")


async def test_what_a_generator_raises(executor: Executor) -> None:
    def bad() -> Any:
        yield 1
        raise SystemExit(3)

    items = executor.iterate(entry(bad), (), {}, RUNNING)
    assert await anext(items) == 1
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        await anext(items)


async def test_who_is_ending_says_its_name(executor: Executor) -> None:
    executor.drain("bob")
    with pytest.raises(PeerLost, match="bob is ending") as lost:
        executor.admit(entry(void), PEER)
    assert (lost.value.peer, lost.value.may_have_run) == ("bob", False)


async def test_leaving_does_not_wait_for_functions_that_can_not_be_stopped() -> None:
    gate, began = threading.Event(), time.monotonic()
    async with Executor(ExecuteOptions(threads=1)) as executor:
        executor.pool.submit(partial(gate.wait, 30))
    assert time.monotonic() - began < 5
    gate.set()
