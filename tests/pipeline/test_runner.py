"""Runs through stages: what they take and give, and what skips some of them."""

import asyncio
import gc
import queue
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.errors import ArgumentError, ContextClosed
from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key, Order, PipePlan, StagePlan
from psframework.pipeline.runner import Runner
from psframework.pipeline.schedule import actions
from psframework.pipeline.stage import Result, Task
from psframework.rpc.compute import compute
from tests.support import pipeline_models as models
from tests.support.pipeline_oracle import Oracle, modules
from tests.support.pipeline_world import pipeline

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("eager-1f1b", 1), ("zb-h1", 1), ("interleaved", 2)]


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


async def assert_equals_one_process(pipe: Any, oracle: Oracle, batches: Any) -> None:
    oracle.whole.load_state_dict(await pipe.state_dict())
    for x, y in batches:
        assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
    assert oracle.difference(await pipe.state_dict()) < 1e-12


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
async def test_trees_between_stages(schedule: str, virtual: int) -> None:
    """Dicts, tuples and lists, integers that pass through, outputs nobody uses, frozen parameters, none."""
    stages = [(models.Words, ()), (models.Middle, ()), (models.Plain, ()), (models.Scores, ())]
    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 20, (rows, length)), rng.integers(0, 20, (rows, length)))
        for rows, length in [(8, 5), (11, 3), (3, 6)]
    ]
    async with pipeline(
        stages,
        loss=models.word_loss,
        optimizer=optim.SGD(lr=0.1, momentum=0.9),
        schedule=schedule,
        virtual_stages=virtual,
        microbatches=4,
    ) as pipe:
        frozen = (await pipe.state_dict())["1.frozen.weight"]
        await assert_equals_one_process(pipe, Oracle(modules(stages), models.word_loss, sgd, 4), batches)
        np.testing.assert_array_equal((await pipe.state_dict())["1.frozen.weight"], frozen)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
async def test_skips_go_past_the_stages_between(schedule: str, virtual: int, recompute: bool) -> None:
    stages = [(models.Down, ()), (models.Hidden, ()), (models.Across, ()), (models.Up, ())]
    async with pipeline(
        stages,
        loss=F.cross_entropy,
        optimizer=optim.SGD(lr=0.1, momentum=0.9),
        schedule=schedule,
        virtual_stages=virtual,
        recompute=recompute,
    ) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, sgd)
        await assert_equals_one_process(pipe, oracle, [models.data(13, seed) for seed in range(3)])
        x, _ = models.data(5, 9)
        assert np.abs(await pipe.infer(x) - oracle.forward(x, 0).data).max() < 1e-12


async def test_skips_within_a_sequential_that_is_cut() -> None:
    stages = [(models.Down, ()), (models.Hidden, ()), (models.Across, ()), (models.Up, ())]
    parts = modules(stages)
    oracle = Oracle(parts, F.cross_entropy, sgd)
    async with pipeline(
        oracle.whole, 2, loss=F.cross_entropy, optimizer=optim.SGD(lr=0.1, momentum=0.9)
    ) as pipe:
        await assert_equals_one_process(pipe, oracle, [models.data(13, seed) for seed in range(2)])


async def test_a_skip_that_only_an_inner_module_declares() -> None:
    stages = [(models.Wrapped, ()), (models.Head, ())]
    with pytest.raises(ArgumentError, match=r"stage 0 stashed 'low'.*classes of both stages"):
        async with pipeline(stages, loss=F.cross_entropy) as pipe:
            await pipe.step(*models.data(4))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
async def test_lengths_and_dtypes_that_change_from_step_to_step(schedule: str) -> None:
    stages = [(models.Hidden, ()), (models.Doubled, ()), (models.Hidden, ())]
    rng = np.random.default_rng(3)
    batches = [
        tuple(rng.normal(size=(rows, length, models.WIDTH)).astype(dtype) for _ in "xy")
        for rows, length, dtype in [(7, 4, np.float32), (9, 2, np.float64), (2, 5, np.float32)]
    ]
    async with pipeline(
        stages, loss=models.square_loss, optimizer=optim.SGD(lr=0.1, momentum=0.9), schedule=schedule
    ) as pipe:
        await assert_equals_one_process(pipe, Oracle(modules(stages), models.square_loss, sgd), batches)


@pytest.mark.parametrize("recompute", [False, True])
async def test_dropout_and_batch_norm_equal_a_loop_over_micro_batches(recompute: bool) -> None:
    stages = [(models.Normed, ()), (models.Dropped, ()), (models.Head, ())]
    async with pipeline(
        stages, loss=F.cross_entropy, optimizer=optim.SGD(lr=0.1, momentum=0.9), recompute=recompute
    ) as pipe:
        seed = pipe._driver._ranks.plan.seed
        oracle = Oracle(modules(stages), F.cross_entropy, sgd, seed=seed)
        await assert_equals_one_process(pipe, oracle, [models.data(40, seed) for seed in range(3)])


async def test_errors_say_where_they_were_raised() -> None:
    x, y = models.data(8)
    x[:, 0] = [1, 1, 1, 1, 1, -1, 1, 1]
    async with pipeline(
        [(models.Faulty, ()), (models.Head, ())], loss=F.cross_entropy, microbatches=4
    ) as pipe:
        with pytest.raises(ValueError, match="a negative number") as caught:
            await pipe.step(x, y)
    assert "in the forward of stage 0, micro-batch 2" in caught.value.__notes__


async def test_a_loss_that_is_no_number() -> None:
    async with pipeline([(models.Head, ())], loss=models.no_loss, microbatches=2) as pipe:
        with pytest.raises(psf.ArgumentError, match="loss must be one number"):
            await pipe.step(*models.data(8))


async def test_training_needs_a_loss() -> None:
    async with pipeline([(models.Head, ())]) as pipe:
        x, y = models.data(8)
        assert (await pipe.infer(x)).shape == (8, models.CLASSES)
        for training in (pipe.step, pipe.evaluate):
            with pytest.raises(ArgumentError, match="no loss: open it with loss="):
                await training(x, y)


@pytest.mark.parametrize("drivers", [0, 1])
async def test_evaluation_gives_the_loss_and_changes_nothing(drivers: int) -> None:
    stages = [(models.Normed, ()), (models.Head, ())]
    async with pipeline(
        stages, loss=F.cross_entropy, optimizer=optim.SGD(lr=0.1), microbatches=3, drivers=drivers
    ) as pipe:
        before = await pipe.state_dict()
        model = Oracle(modules(stages), F.cross_entropy, sgd).whole
        model.load_state_dict(before)
        model.eval()
        x, y = models.data(10)
        loss = F.cross_entropy(model(psf.tensor(x)), y)
        assert await pipe.evaluate(x, y) == pytest.approx(float(loss.data), abs=1e-12)
        after = await pipe.state_dict()
        assert all((before[name] == after[name]).all() for name in before)


class Alone:
    """A runner of stage 0 of 2 whose post only notes, and whose gradients come when they are put."""

    def __init__(self, stage: Any, microbatches: int) -> None:
        self.sent: list[Key] = []
        self.mailbox = Mailbox()
        plan = PipePlan("pipe", 0, (("here",), ("there",)), stages=2, schedule="gpipe", seed=0)
        order = Order(1, 0, microbatches)
        self.runner = Runner(plan, order, {0: stage}, {0: StagePlan(0, models.Hidden)}, self.mailbox, self)
        self.actions = actions("gpipe", 0, 2, microbatches)

    def send(self, to: str, key: Key, tree: Any) -> None:
        self.sent.append(key)

    def put(self, kind: str, microbatch: int) -> None:
        self.mailbox.put(Key(1, kind, 0, microbatch), None)


class Gate:
    """A stage whose forwards wait until they are let through, one after the other."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.through: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def forward(self, task: Task) -> Result:
        self.began.append(task.microbatch)
        error = self.through.get(timeout=30)
        if error is not None:
            raise error
        return Result(task.microbatch, {})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the compute thread says nothing
            await asyncio.sleep(0.001)


async def test_what_an_action_gave_is_sent_while_the_next_computes() -> None:
    gate = Gate()
    alone = Alone(gate, 3)
    for number in range(3):
        alone.put("F", number)
    run = asyncio.ensure_future(alone.runner.go(alone.actions[:3]))
    gate.through.put(None)
    await until(lambda: len(alone.sent) == 1)
    await until(lambda: gate.began == [0, 1])  # without anybody having asked for it after what was sent
    assert alone.runner.doing == "computing F of stage 0"
    gate.through.put(None)
    gate.through.put(None)
    await run
    assert [key.microbatch for key in alone.sent] == [0, 1, 2] and gate.began == [0, 1, 2]


async def test_what_an_action_gave_does_not_wait_for_the_data_of_the_next() -> None:
    gate = Gate()
    alone = Alone(gate, 2)
    alone.put("F", 0)
    run = asyncio.ensure_future(alone.runner.go(alone.actions[:2]))
    gate.through.put(None)
    await until(lambda: len(alone.sent) == 1)
    await until(
        lambda: alone.runner.doing.startswith("waiting for the data of the forward of stage 0, micro-batch 1")
    )
    alone.put("F", 1)
    gate.through.put(None)
    await run


async def test_an_error_keeps_what_has_not_begun_from_running() -> None:
    gate = Gate()
    alone = Alone(gate, 3)
    for number in range(3):
        alone.put("F", number)
    run = asyncio.ensure_future(alone.runner.go(alone.actions[:3]))
    await until(lambda: gate.began == [0])
    gate.through.put(ValueError("no"))
    gate.through.put(None)
    with pytest.raises(ValueError, match="no") as caught:
        await run
    assert caught.value.__notes__ == ["in the forward of stage 0, micro-batch 0"]
    await compute(gate.began.append, -1)  # whatever was in the queue has run, or never will
    assert 2 not in gate.began and not alone.sent


class Activations:
    """What a forward has when it fails."""


class Failing:
    """A stage whose forward fails."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Activations]] = []

    def forward(self, task: Task) -> Result:
        made = Activations()
        self.made.append(weakref.ref(made))
        raise ValueError("no")


@pytest.mark.parametrize("there", [1, 2])
async def test_what_an_action_that_failed_had_is_free_at_once(there: int) -> None:
    """Not when cycles are looked for next: it may be as much as the memory."""
    failing = Failing()
    alone = Alone(failing, 2)
    for number in range(there):
        alone.put("F", number)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no") as caught:
            await alone.runner.go(alone.actions[:2])
        assert failing.made[0]() is not None  # of the first; the one behind it may have run, too
        del caught
        await until(lambda: all(each() is None for each in failing.made))
    finally:
        gc.enable()


async def test_what_ended_the_run_is_raised_though_an_action_computes() -> None:
    gate = Gate()
    alone = Alone(gate, 2)
    alone.put("F", 0)
    run = asyncio.ensure_future(alone.runner.go(alone.actions[:2]))
    await until(lambda: gate.began == [0])
    alone.mailbox.end(1, ContextClosed("over"))
    with pytest.raises(ContextClosed, match="over"):
        await run
    gate.through.put(ValueError("nobody is told"))
    await compute(gate.began.append, -1)
    assert gate.began == [0, -1]
