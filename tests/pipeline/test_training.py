"""Orders of training: what each step is told, the first time and when it is done again."""

from typing import Any

import numpy as np
import pytest

from psframework.pipeline.microbatch import split
from psframework.pipeline.plan import Order, PipePlan, Report
from psframework.pipeline.ranks import Seat
from psframework.pipeline.scaling import BACKOFF, FIRST
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.training import Training
from psframework.rpc.deadline import Deadline

BATCH = split(np.zeros((4, 1)), np.zeros(4), 2)


class Pipe:
    """Ranks and runs that note what they are told."""

    def __init__(self, served: set[int] | None = None, **options: Any) -> None:
        self.plan = PipePlan("pipe", 1, (("a",), ("b",)), 2, "1f1b", 0)
        self.seats = [Seat(0, 0), Seat(1, 0)]
        self.orders: list[Order] = []
        self.calls: list[Any] = []
        self.number = 0
        self.power = 4.0
        self.training = Training(self, self, PipelineOptions(**options), served or set())  # type: ignore[arg-type]

    def next(self) -> int:
        self.number += 1
        return self.number

    async def go(self, order: Order, *_: Any) -> list[Report]:
        self.orders.append(order)
        return [Report(power=self.power / 2)] * 2

    async def call(self, method: str, *args: Any, deadline: Deadline, seats: Any = None) -> list[Any]:
        self.calls.append((method, args, seats))
        return [Report()] * 2

    async def step(self, update: bool = True) -> None:
        done = self.training.history.place(BATCH, update)
        await self.training.train(done, Deadline.NEVER)
        self.training.history.add(done, self.number)


async def test_a_step_as_it_is_ordered() -> None:
    pipe = Pipe()
    await pipe.step()
    await pipe.step()
    first, second = pipe.orders
    assert (first.run, first.step, first.over, first.complete) == (1, 0, 0, 0)
    assert (second.run, second.step, second.over, second.complete) == (2, 1, 1, 1)
    assert first.weights == (0.5, 0.5) and first.microbatches == 2
    assert first.update == "now" and first.commit and first.fresh and not pipe.calls


async def test_gradients_are_kept_until_an_update() -> None:
    pipe = Pipe()
    for update in (False, False, True, True):
        await pipe.step(update)
    assert [order.fresh for order in pipe.orders] == [True, False, False, True]
    assert [order.update for order in pipe.orders] == ["", "", "now", "now"]
    assert [order.commit for order in pipe.orders] == [False, False, True, True]


async def test_commits_come_as_often_as_asked_for() -> None:
    pipe = Pipe(commit_every=3)
    for _ in range(4):
        await pipe.step()
    assert [order.commit for order in pipe.orders] == [False, False, True, False]
    assert [order.complete for order in pipe.orders] == [0, 0, 0, 3]


async def test_an_update_is_held_where_the_norm_of_all_counts() -> None:
    pipe = Pipe(max_norm=1.0)
    await pipe.step()
    assert pipe.orders[0].update == "held"
    ((method, (run, coefficient), _),) = pipe.calls
    assert (method, run) == ("update", 1) and coefficient == pytest.approx(0.5, rel=1e-3)


async def test_a_step_that_is_done_again_has_the_scale_that_it_had() -> None:
    pipe = Pipe(precision="float16", commit_every=9)
    pipe.power = float("inf")
    await pipe.step()
    await pipe.step()
    for done in pipe.training.history.since_commit:
        await pipe.training.train(done, Deadline.NEVER)
    scales = [order.weights[0] / 0.5 for order in pipe.orders]
    assert scales == [FIRST, FIRST * BACKOFF] * 2
    assert [args[1] for _, args, _ in pipe.calls] == [None] * 4


async def test_only_ranks_with_parameters_on_a_server_push() -> None:
    pipe = Pipe({1})
    await pipe.training.push(Deadline.NEVER)
    assert pipe.calls == [("push", (), [Seat(1, 0)])]
    pipe = Pipe()
    await pipe.training.push(Deadline.NEVER)
    assert not pipe.calls
