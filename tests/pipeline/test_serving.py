"""Requests for inference that wait at the same time: run together, and each gets what is its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, PeerLost, PsfError
from psframework.pipeline.serving import IN_FLIGHT, Serving
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import Caller, Running, enter, runs_for_a_call

SOON = 0.05


class Pipe:
    """What runs batches: doubles each, when it is let."""

    def __init__(self, rows: int = 256) -> None:
        self.serving = Serving(self._run, self._blame, rows)
        self.ran: list[np.ndarray] = []
        self.most = self._running = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Callable[[np.ndarray], None] = lambda x: None

    async def _run(self, x: Any, deadline: Deadline) -> Any:
        self.ran.append(x)
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            async with asyncio.timeout(deadline.seconds()):
                await self.gate.wait()
            self.fault(x)
            return x * 2
        except TimeoutError:
            raise DeadlineExceeded("stage 1 on stage-1 is late") from None
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._running -= 1

    async def _blame(self) -> str:
        return "stage 0 on stage-0 is late"

    async def infer(self, x: np.ndarray, seconds: float | None = 30.0) -> Any:
        return await self.serving.infer(x, Deadline.after(seconds))

    def ask(self, *xs: np.ndarray) -> list[asyncio.Task[Any]]:
        return [asyncio.ensure_future(self.infer(x)) for x in xs]

    async def under_way(self, batches: int) -> None:
        async with asyncio.timeout(5):
            while len(self.ran) < batches:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)


def rows(value: float, count: int = 2, width: int = 3) -> np.ndarray:
    return np.full((count, width), value)


async def test_requests_that_wait_go_together_and_each_gets_its_rows() -> None:
    pipe = Pipe()
    requests = [rows(number, 1 + number % 3) for number in range(32)]
    answers = await asyncio.gather(*map(pipe.infer, requests))
    for x, answer in zip(requests, answers):
        np.testing.assert_array_equal(answer, x * 2)
    assert (pipe.serving.requests, pipe.serving.batches, len(pipe.ran)) == (32, 1, 1)


async def test_batches_have_a_limit_and_several_are_under_way() -> None:
    pipe = Pipe(rows=4)
    pipe.gate.clear()
    tasks = pipe.ask(*[rows(number) for number in range(8)])
    await pipe.under_way(IN_FLIGHT)
    pipe.gate.set()
    await asyncio.gather(*tasks)
    assert [len(x) for x in pipe.ran] == [4] * 4 and pipe.most == IN_FLIGHT


async def test_those_that_come_while_others_run_go_together_next() -> None:
    pipe = Pipe()
    pipe.gate.clear()
    for number in range(IN_FLIGHT):
        pipe.ask(rows(number))
        await pipe.under_way(number + 1)
    tasks = pipe.ask(*[rows(number) for number in range(9)])
    await asyncio.sleep(0)
    pipe.gate.set()
    await asyncio.gather(*tasks)
    assert pipe.serving.batches == IN_FLIGHT + 1


async def test_what_can_not_be_joined_goes_apart() -> None:
    pipe = Pipe()
    requests = [rows(1), rows(2, width=5), rows(3), rows(4).astype(np.float32)]
    for x, answer in zip(requests, await asyncio.gather(*map(pipe.infer, requests))):
        np.testing.assert_array_equal(answer, x * 2)
        assert answer.dtype == x.dtype
    assert sorted(len(x) for x in pipe.ran) == [2, 2, 4]


async def test_a_request_that_fails_leaves_the_others() -> None:
    pipe = Pipe()

    def fault(x: np.ndarray) -> None:
        if (x == 3).any():
            raise ValueError("a three")

    pipe.fault = fault
    answers = await asyncio.gather(*[pipe.infer(rows(n)) for n in range(5)], return_exceptions=True)
    for number, answer in enumerate(answers):
        if number == 3:
            assert isinstance(answer, ValueError)
        else:
            np.testing.assert_array_equal(answer, rows(number) * 2)
    assert pipe.serving.batches == 6  # all, then each


@pytest.mark.parametrize("error", [PeerLost("stage 1 is gone"), ContextClosed("closed")])
async def test_what_no_request_is_to_blame_for_fails_all_of_the_batch_only(error: PsfError) -> None:
    pipe = Pipe(rows=4)

    def fault(x: np.ndarray) -> None:
        if len(pipe.ran) == 1:
            raise error

    pipe.fault = fault
    first = pipe.ask(rows(0), rows(1))
    answers = await asyncio.gather(*first, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(error)] * 2
    np.testing.assert_array_equal(await pipe.infer(rows(2)), rows(4))


async def test_a_model_that_gives_other_rows_is_run_for_one_request_at_a_time() -> None:
    async def mean(x: np.ndarray, deadline: Deadline) -> np.ndarray:
        return x.mean(0, keepdims=True)

    serving = Serving(mean, Pipe()._blame, 256)
    answers = await asyncio.gather(*[serving.infer(rows(n), Deadline.NEVER) for n in range(3)])
    np.testing.assert_array_equal(np.concatenate(answers)[:, 0], [0, 1, 2])


async def test_who_is_cancelled_leaves_the_others() -> None:
    pipe = Pipe()
    pipe.gate.clear()
    tasks = pipe.ask(rows(0), rows(1))
    await pipe.under_way(1)
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    pipe.gate.set()
    np.testing.assert_array_equal(await tasks[1], rows(2))
    assert pipe.cancelled == 0


async def test_a_batch_that_nobody_waits_for_is_cancelled_and_one_in_line_never_runs() -> None:
    pipe = Pipe(rows=2)
    pipe.gate.clear()
    tasks = pipe.ask(*[rows(number) for number in range(IN_FLIGHT + 1)])
    await pipe.under_way(IN_FLIGHT)
    for task in tasks[::-1]:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    pipe.gate.set()
    np.testing.assert_array_equal(await pipe.infer(rows(7)), rows(14))
    assert pipe.cancelled == IN_FLIGHT and len(pipe.ran) == IN_FLIGHT + 1


async def test_a_deadline_of_the_batch_tells_who_is_late() -> None:
    pipe = Pipe()
    pipe.gate.clear()
    with pytest.raises(DeadlineExceeded, match="stage 1 on stage-1 is late"):
        await pipe.infer(rows(0), SOON)


async def test_who_has_less_patience_than_the_batch_leaves_and_the_others_stay() -> None:
    pipe = Pipe()
    pipe.gate.clear()
    patient = asyncio.ensure_future(pipe.infer(rows(1), None))
    with pytest.raises(DeadlineExceeded, match="stage 0 on stage-0 is late"):
        await pipe.infer(rows(0), SOON)
    pipe.gate.set()
    np.testing.assert_array_equal(await patient, rows(2))


async def test_close_ends_those_that_wait_and_those_that_run() -> None:
    pipe = Pipe(rows=2)
    pipe.gate.clear()
    tasks = pipe.ask(*[rows(number) for number in range(IN_FLIGHT + 2)])
    await pipe.under_way(IN_FLIGHT)
    await pipe.serving.close()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ContextClosed] * len(tasks)
    assert pipe.cancelled == IN_FLIGHT
    with pytest.raises(ContextClosed):
        await pipe.infer(rows(0))


async def test_what_is_no_request_is_refused_at_once() -> None:
    pipe = Pipe()
    with pytest.raises(ArgumentError, match="0 rows"):
        await pipe.infer(np.zeros((0, 3)))
    assert pipe.serving.requests == 0


async def test_batches_run_for_no_call_in_particular() -> None:
    """A batch is not bounded by the call of whoever happened to come first."""
    seen: list[bool] = []
    pipe = Pipe()
    pipe.fault = lambda x: seen.append(runs_for_a_call())

    async def called() -> None:
        enter(Running(Caller(PeerInfo("trainer-0", "trainer", "default", 1)), Deadline.after(30)))
        assert runs_for_a_call()
        await pipe.infer(rows(0))

    await asyncio.create_task(called())
    assert seen == [False]
