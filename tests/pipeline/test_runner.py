"""Runs through stages: what they take and give, and what skips some of them."""

from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.errors import ArgumentError
from tests.support import pipeline_models as models
from tests.support.pipeline_oracle import Oracle, modules
from tests.support.pipeline_world import pipeline

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved", 2)]


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
