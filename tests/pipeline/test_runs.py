"""Runs: ranks are told and fed, small inputs together; answers, errors and deadlines come back."""

import asyncio
from typing import Any

import numpy as np
import pytest

from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost
from psframework.pipeline.plan import Key, Order, PipePlan, Report, Standing
from psframework.pipeline.post import Letter
from psframework.pipeline.ranks import Seat
from psframework.pipeline.runs import TOGETHER, Runs
from psframework.rpc.deadline import Deadline

PLAN = PipePlan("pipe", 1, (("a", "b"), ("c",)), 2, "1f1b", 0)
SOON = 0.05


class Ranks:
    """Services that answer when they are let."""

    def __init__(self) -> None:
        self.plan = PLAN
        self.lost: set[Seat] = set()
        self.answers: list[asyncio.Future[Any]] = []
        self.doing = "computing F of stage 1"

    def start(self, method: str, *args: Any, deadline: Deadline, seats: Any = None) -> list[Any]:
        self.answers = [asyncio.get_running_loop().create_future() for _ in seats or range(3)]
        return self.answers

    async def look(self, deadline: Deadline) -> dict[Seat, Standing | None]:
        return {Seat(0, 0): Standing(), Seat(0, 1): None, Seat(1, 0): Standing((), self.doing, 2.0)}

    def words(self, seat: Seat) -> str:
        return f"{seat.rank}.{seat.replica}"


class Post:
    """Notes what is sent to whom."""

    def __init__(self) -> None:
        self.parcels: list[tuple[str, list[Letter]]] = []
        self.error: Exception | None = None

    def send_all(self, to: str, letters: list[Letter]) -> asyncio.Future[None]:
        self.parcels.append((to, letters))
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is None:
            sent.set_result(None)
        else:
            sent.set_exception(self.error)
        return sent


class Bench:
    """Runs, with both."""

    def __init__(self) -> None:
        self.ranks, self.post = Ranks(), Post()
        self.runs = Runs(self.ranks, self.post)  # type: ignore[arg-type]

    def go(self, inputs: Any, targets: Any = None, seconds: float | None = 30.0) -> asyncio.Task[Any]:
        order = Order(self.runs.next(), 0, len(inputs))
        return asyncio.ensure_future(self.runs.go(order, inputs, targets, Deadline.after(seconds)))

    async def answered(self, *reports: Any) -> None:
        while not self.ranks.answers:  # noqa: ASYNC110 - the task begins
            await asyncio.sleep(0)
        for answer, report in zip(self.ranks.answers, reports):
            if isinstance(report, Exception):
                answer.set_exception(report)
            else:
                answer.set_result(report)


def arrays(count: int, nbytes: int) -> list[np.ndarray]:
    return [np.zeros(nbytes, np.uint8) for _ in range(count)]


async def test_reports_come_in_the_order_of_the_seats() -> None:
    bench = Bench()
    task = bench.go(arrays(1, 8))
    reports = [Report(clock=float(number)) for number in range(3)]
    await bench.answered(*reports)
    assert await task == reports


async def test_small_inputs_and_targets_travel_together() -> None:
    bench = Bench()
    task = bench.go(arrays(6, 8), [None] * 6)
    await bench.answered(*[Report()] * 3)
    await task
    fed = {to: [(key.kind, key.stage, key.microbatch) for key, _ in some] for to, some in bench.post.parcels}
    assert len(bench.post.parcels) == 3
    assert fed["a"] == [("F", 0, 0), ("F", 0, 2), ("F", 0, 4)]  # replicas take turns
    assert fed["b"] == [("F", 0, 1), ("F", 0, 3), ("F", 0, 5)]
    assert fed["c"] == [("T", 1, number) for number in range(6)]


@pytest.mark.parametrize(
    ("nbytes", "parcels"), [(TOGETHER // 2, [2, 2, 1]), (TOGETHER // 2 + 1, [1] * 5), (3 * TOGETHER, [1] * 5)]
)
async def test_large_ones_travel_alone(nbytes: int, parcels: list[int]) -> None:
    bench = Bench()
    task = bench.go(arrays(10, nbytes))
    await bench.answered(*[Report()] * 3)
    await task
    assert [len(some) for to, some in bench.post.parcels if to == "a"] == parcels
    numbers = [key.microbatch for to, some in bench.post.parcels for key, _ in some if to == "a"]
    assert numbers == [0, 2, 4, 6, 8]
    assert all(isinstance(key, Key) and key.run == 1 for _, some in bench.post.parcels for key, _ in some)


async def test_the_first_error_is_raised_and_ends_the_others() -> None:
    bench = Bench()
    task = bench.go(arrays(2, 8))
    await bench.answered(Report(), ValueError("a fault"))
    with pytest.raises(ValueError, match="a fault"):
        await task
    assert bench.ranks.answers[2].cancelled()


async def test_inputs_that_do_not_arrive() -> None:
    bench = Bench()
    bench.post.error = ValueError("no way")
    with pytest.raises(ValueError, match="no way"):
        await bench.go(arrays(2, 8))
    assert all(answer.cancelled() for answer in bench.ranks.answers)


async def test_a_deadline_names_who_is_late() -> None:
    bench = Bench()
    bench.ranks.lost.add(Seat(0, 0))
    with pytest.raises(DeadlineExceeded) as raised:
        await bench.go(arrays(2, 8), seconds=SOON)
    for text in ("0.0 is gone", "0.1 does not answer", "1.0 has been computing F of stage 1 for 2.0 s"):
        assert text in str(raised.value)
    assert all(answer.cancelled() for answer in bench.ranks.answers)


async def test_who_waits_for_others_is_not_blamed_while_somebody_computes() -> None:
    bench = Bench()
    bench.ranks.doing = "waiting for the data of the forward of stage 1"
    assert "1.0 has been waiting" in await bench.runs.blame()


async def test_a_deadline_that_passes_as_the_last_one_ends() -> None:
    bench = Bench()

    async def look(_: Deadline) -> dict[Seat, Standing | None]:
        return {seat: Standing() for seat in (Seat(0, 0), Seat(0, 1), Seat(1, 0))}

    bench.ranks.look = look  # type: ignore[method-assign]
    assert await bench.runs.blame() == "the step did not end in time: by now nobody is at it any more"


async def test_a_call_that_is_late_or_ends_with_the_pipe() -> None:
    bench = Bench()
    with pytest.raises(DeadlineExceeded, match=r"1\.0 has been computing F of stage 1"):
        await bench.runs.call("go_back", deadline=Deadline.after(SOON))
    call = asyncio.ensure_future(bench.runs.call("go_back", deadline=Deadline.NEVER))
    bench.ranks.answers = []
    bench.runs.closed = True
    await bench.answered(PeerLost("it was closed", reason="closed"))
    with pytest.raises(ContextClosed):
        await call


async def test_without_a_limit() -> None:
    bench = Bench()
    task = bench.go(arrays(1, 8), seconds=None)
    await bench.answered(*[Report()] * 3)
    assert len(await task) == 3


async def test_clocks_of_services_are_learned() -> None:
    bench = Bench()
    task = bench.go(arrays(1, 8))
    await bench.answered(*[Report(clock=1e9, kernel="elsewhere")] * 3)
    await task
    assert bench.runs.clocks.here("c", 1e9) < 1e9


async def test_numbers_and_the_end() -> None:
    runs = Bench().runs
    assert [runs.next(), runs.next()] == [1, 2] == [runs.number - 1, runs.number]
    runs.closed = True
    with pytest.raises(ContextClosed):
        await runs.go(Order(3, 0, 1), [1], None, Deadline.NEVER)
