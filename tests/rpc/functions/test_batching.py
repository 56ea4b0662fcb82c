"""Calls of one item each become calls of many."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.errors import ArgumentError
from psframework.rpc import registry
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions import context, scope
from psframework.rpc.functions.batching import Room, Waiting, batched
from psframework.rpc.functions.context import Caller, Running
from psframework.rpc.registry import Kind
from psframework.testing.workers import Phonebook, worker

LONG = 30.0  # seconds: nothing here waits so long


class Recorder:
    """An object with batched methods, and the batches they got."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.go, self.began = asyncio.Event(), asyncio.Event()
        self.go.set()

    @batched(max_size=4, max_wait=LONG)
    async def double(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.began.set()
        await self.go.wait()
        return [2 * item for item in items]

    @batched(max_size=100, max_wait=0.02)
    async def soon(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        return items


def waiting(since: float) -> Waiting:
    return Waiting(None, since, asyncio.get_running_loop().create_future())


async def test_when_a_batch_is_due() -> None:
    room = Room(max_size=3, max_wait=2.0)
    assert room.due_in(5.0) == 0 and room.take() == []
    first, second = waiting(10.0), waiting(11.0)
    room.add(first)
    room.add(second)
    assert room.due_in(11.5) == 0.5 and not room.full
    room.add(waiting(11.5))
    room.add(fourth := waiting(11.6))
    assert room.full and room.due_in(11.6) == 0
    room.discard(second)
    assert room.full
    assert [call.since for call in room.take()] == [10.0, 11.5, 11.6]
    room.discard(fourth)
    room.add(fourth)
    assert room.due_in(12.0) == pytest.approx(1.6) and room.take() == [fourth]


async def test_a_full_batch_runs_at_once_and_results_go_where_they_belong() -> None:
    recorder = Recorder()
    results = await asyncio.gather(*(recorder.double(number) for number in range(8)))
    assert results == [2 * number for number in range(8)]
    assert recorder.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]


async def test_a_batch_that_is_not_full_waits_only_so_long() -> None:
    recorder = Recorder()
    began = asyncio.get_running_loop().time()
    assert await asyncio.gather(recorder.soon(1), recorder.soon(2)) == [1, 2]
    assert recorder.batches == [[1, 2]]
    assert asyncio.get_running_loop().time() - began >= 0.02


async def test_batches_run_one_after_the_other_and_the_next_gathers_meanwhile() -> None:
    recorder = Recorder()
    recorder.go.clear()
    calls = [asyncio.ensure_future(recorder.double(number)) for number in range(4)]
    await recorder.began.wait()
    calls += [asyncio.ensure_future(recorder.double(number)) for number in range(4, 8)]
    await asyncio.sleep(0.01)
    assert len(recorder.batches) == 1
    recorder.go.set()
    assert len(await asyncio.gather(*calls)) == 8 and len(recorder.batches) == 2


async def test_a_call_at_the_very_moment_when_the_last_batch_has_run() -> None:
    later: list[asyncio.Task[int]] = []

    class Telling(list[int]):
        def __getitem__(self, index: Any) -> Any:  # read when the batch has run, and its task is about to end
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: later.append(loop.create_task(single(7))))
            return super().__getitem__(index)

    @batched(max_size=1)
    async def single(items: list[int]) -> list[int]:
        return items if items == [7] else Telling(items)

    assert await single(5) == 5
    assert await later[0] == 7


async def test_each_object_has_batches_of_its_own_and_dies_without_them() -> None:
    here, there = Recorder(), Recorder()
    await asyncio.gather(*(each.double(i) for i in range(4) for each in (here, there)))
    assert here.batches == there.batches == [[0, 1, 2, 3]]
    gone = asyncio.Event()
    weakref.finalize(here, gone.set)
    del here
    gc.collect()
    assert gone.is_set()


async def test_a_plain_function_runs_in_the_compute_thread_and_may_return_an_array() -> None:
    threads = []

    @batched(max_size=3, max_wait=LONG)
    def squares(items: list[int]) -> np.ndarray:
        threads.append(threading.current_thread())
        return np.array(items) ** 2

    assert await asyncio.gather(squares(1), squares(2), squares(3)) == [1, 4, 9]
    assert threads != [threading.main_thread()] and len(threads) == 1


async def test_errors_of_one_and_of_all() -> None:
    @batched(max_size=2, max_wait=LONG)
    async def check(items: list[int]) -> list[Any]:
        if 13 in items:
            raise LookupError("thirteen")
        return [ValueError(f"{item} is odd") if item % 2 else item for item in items]

    assert await _outcomes(check(2), check(3)) == [2, "ValueError: 3 is odd"]
    assert await _outcomes(check(2), check(13)) == ["LookupError: thirteen"] * 2


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([1], "ValueError: a batched function got 2 items and returned 1"),
        (None, "TypeError: a batched function returned a NoneType, not a list"),
        ({"a": 1, "b": 2}, "TypeError: a batched function returned a dict, not a list"),
    ],
)
async def test_a_function_that_returns_something_else(result: Any, words: str) -> None:
    @batched(max_size=2, max_wait=LONG)
    async def wrong(items: list[int]) -> Any:
        return result

    for outcome in await _outcomes(wrong(1), wrong(2)):
        assert words in outcome


async def test_what_users_code_should_not_raise_does_not_end_the_loop() -> None:
    @batched(max_size=1)
    async def ends(items: list[Any]) -> list[Any]:
        raise SystemExit(3)

    assert "SystemExit" in (await _outcomes(ends(1)))[0]


async def test_whoever_gives_up_is_left_out_and_a_batch_that_runs_comes_to_its_end() -> None:
    recorder = Recorder()
    early = asyncio.ensure_future(recorder.double(0))
    await asyncio.sleep(0)
    early.cancel()
    recorder.go.clear()
    calls = [asyncio.ensure_future(recorder.double(number)) for number in range(1, 5)]
    await recorder.began.wait()
    calls[0].cancel()
    recorder.go.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert recorder.batches == [[1, 2, 3, 4]]
    assert isinstance(outcomes[0], asyncio.CancelledError) and outcomes[1:] == [4, 6, 8]


async def test_the_end_of_the_loop_cancels_what_waits() -> None:
    def run() -> list[str]:
        async def main() -> list[str]:
            recorder = Recorder()
            call = asyncio.ensure_future(recorder.double(1))
            await asyncio.sleep(0)
            for task in asyncio.all_tasks():
                if task.get_name() == "psf-batches":
                    task.cancel()
            await asyncio.wait([call])
            left = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
            return [str(call.cancelled()), *left]

        return asyncio.run(main())

    assert await asyncio.to_thread(run) == ["True"]


async def test_a_batch_is_no_call_of_its_first_caller() -> None:
    deadlines = []

    @batched(max_size=2, max_wait=LONG)
    async def look(items: list[int]) -> list[int]:
        deadlines.append(context.running_deadline())
        with pytest.raises(ArgumentError, match="no remote function runs here"):
            psf.current_caller()
        return items

    context.enter(Running(Caller(PeerInfo("a", "trainer", "", 1)), Deadline.after(5)))
    try:
        assert await asyncio.gather(look(1), look(2)) == [1, 2]
    finally:
        context.leave()
    assert deadlines == [Deadline.NEVER]


class Noted:
    """A scope that is a name."""

    inside = ContextVar("inside", default="")

    def leave(self, name: str) -> bytes:
        return self.inside.get().encode()

    def enter(self, data: bytes, peer: PeerInfo) -> None:
        raise AssertionError("no call comes")

    def current(self) -> object:
        return self.inside.get()

    def resume(self, found: Any) -> None:
        self.inside.set(found or "")


async def test_a_batch_is_of_one_scope_and_runs_in_it() -> None:
    """Not in that of the first caller of all, which may have ended."""
    batches, scope_of = [], Noted()

    @batched(max_size=2, max_wait=LONG)
    async def look(items: list[str]) -> list[str]:
        batches.append((scope.leaving("worker-0"), items))
        return items

    async def ask(item: str) -> str:
        scope_of.resume(item[:-1])
        return await look(item)

    items = ["a1", "1", "b1", "a2", "a3", "2", "a4", "b2"]
    scope.carry(scope_of)
    try:
        assert await asyncio.gather(*map(ask, items)) == items
    finally:
        scope.put_down()
    assert batches == [(b"a", ["a1", "a2"]), (b"", ["1", "2"]), (b"b", ["b1", "b2"]), (b"a", ["a3", "a4"])]


def generator(items: Sequence[int]) -> Any:
    yield from items


async def async_generator(items: Sequence[int]) -> Any:
    yield items


def many(a: Any, b: Any, c: Any) -> None: ...


@pytest.mark.parametrize("function", [generator, async_generator, Recorder, many, lambda: None, 3])
def test_functions_that_can_not_be_batched(function: Any) -> None:
    with pytest.raises(ArgumentError, match="can't be batched"):
        batched(function)


@pytest.mark.parametrize(
    "options", [{"max_size": 0}, {"max_size": 2.5}, {"max_size": True}, {"max_wait": -1}, {"max_wait": 1e9}]
)
def test_sizes_and_times_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="max_"):
        batched(**options)


async def test_one_item_a_call() -> None:
    with pytest.raises(ArgumentError, match="takes one item a call, not 2: pass a tuple"):
        await Recorder().double(1, 2)


@psf.remote
@batched(max_size=16, max_wait=LONG)
def total(items: list[np.ndarray]) -> np.ndarray:
    """Sums rows, all callers' at once."""
    return np.stack(items).sum(1)


async def test_remote_calls_of_many_clients_are_one_batch() -> None:
    assert registry.find(registry.name_of(total)).kind is Kind.COROUTINE
    book = Phonebook()
    async with worker("server", book), worker("a", book) as a, worker("b", book) as b:
        rows = np.arange(32.0).reshape(16, 2)
        futures = [(a, b)[i % 2].remote.rpc_async("server", total, (row,)) for i, row in enumerate(rows)]
        np.testing.assert_array_equal(await asyncio.gather(*futures), rows.sum(1))


async def _outcomes(*calls: Any) -> list[Any]:
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    return [f"{type(o).__name__}: {o}" if isinstance(o, BaseException) else o for o in outcomes]


@dataclass
class Equal:
    """All its objects are equal, and have no hash."""

    @batched(max_wait=0.01)
    async def who(self, items: list[int]) -> list[Any]:
        return [self for _ in items]


async def test_equal_objects_do_not_share_their_batches() -> None:
    here, there = Equal(), Equal()
    assert here == there
    found = await asyncio.gather(here.who(1), there.who(2))
    assert found[0] is here and found[1] is there


async def test_an_object_that_can_not_be_watched_says_what_it_lacks() -> None:
    class Slotted:
        __slots__ = ()

        @batched
        async def same(self, items: list[int]) -> list[int]:
            return items

    with pytest.raises(ArgumentError, match="Slotted has __slots__ without '__weakref__'"):
        await Slotted().same(1)


@batched(max_wait=0)
async def odd(items: list[int]) -> list[Any]:
    return [True if item == 1 else await even(item - 1) for item in items]


@batched(max_wait=0)
async def even(items: list[int]) -> list[Any]:
    return [await odd(item - 1) for item in items]


async def test_a_function_that_awaits_itself_is_told_so() -> None:
    later: list[asyncio.Task[Any]] = []

    @batched(max_wait=0)
    async def leaves_a_task(items: list[int]) -> list[int]:
        if items != [2]:
            later.append(asyncio.get_running_loop().create_task(after()))
        return items

    async def after() -> int:
        await done.wait()
        return int(await leaves_a_task(2))

    async with asyncio.timeout(5):
        assert await even(2) is True
        for nested in (even(4), odd(3)):
            with pytest.raises(ArgumentError, match="awaits itself"):
                await nested
        done = asyncio.Event()
        assert await leaves_a_task(1) == 1
        done.set()
        assert await later[0] == 2, "that batch is over"
        assert await even(2) is True
