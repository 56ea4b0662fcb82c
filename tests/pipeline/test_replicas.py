"""Replicas of a stage: they share its micro-batches, and equal one process."""

import asyncio
from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import optim
from psframework.pipeline.host import build
from psframework.pipeline.plan import PipePlan, StagePlan
from psframework.pipeline.replicas import Replicas
from psframework.pipeline.spec import Stage
from tests.support.pipeline_models import (
    CLASSES,
    WIDTH,
    Dropped,
    Faulty,
    Head,
    Hidden,
    Normed,
    Rows,
    Scores,
    Small,
    data,
    word_loss,
)
from tests.support.pipeline_oracle import Oracle, adam, modules
from tests.support.pipeline_world import pipeline


@pytest.mark.parametrize("microbatches", [1, 2, 7])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("replicas", [(2, 1, 1), (1, 3, 2)])
async def test_equals_one_process(replicas: tuple[int, ...], schedule: str, microbatches: int) -> None:
    kinds = (Hidden, Dropped, Head)
    stages = [Stage(kind, replicas=count) for kind, count in zip(kinds, replicas)]
    async with pipeline(
        stages,
        loss=F.cross_entropy,
        optimizer=adam(),
        schedule=schedule,
        microbatches=microbatches,
    ) as pipe:
        seed = pipe._driver._ranks.plan.seed
        oracle = Oracle(modules(stages), F.cross_entropy, adam, microbatches, seed)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for step in range(3):
            x, y = data(17, step)
            assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
            x, y = data(6, step + 10)
            await pipe.step(x, y)
            oracle.step(x, y)
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_interleaved_ranks() -> None:
    stages = [
        Stage(kind, replicas=1 + number % 2) for number, kind in enumerate([Hidden, Hidden, Hidden, Head])
    ]
    async with pipeline(
        stages, loss=F.cross_entropy, optimizer=adam(), schedule="interleaved", virtual_stages=2
    ) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, adam)
        oracle.whole.load_state_dict(await pipe.state_dict())
        x, y = data(17)
        assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_the_norm_counts_a_replicated_stage_once() -> None:
    stages = [Stage(Small, replicas=2), Stage(Small, (WIDTH, CLASSES), replicas=2)]
    async with pipeline(stages, loss=F.cross_entropy, optimizer=adam(), max_norm=0.01) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, adam)
        oracle.whole.load_state_dict(await pipe.state_dict())
        x, y = data(16)
        x = x.astype(np.float32)
        await pipe.step(x, y)
        oracle.gradients(x, y)
        assert optim.clip_grad_norm_(oracle.whole.parameters(), 0.01) > 0.01
        oracle.optimizer.step()
        assert oracle.difference(await pipe.state_dict()) < 1e-6


async def test_gradients_that_are_rows_stay_so() -> None:
    """Adam leaves rows alone that no replica has used, as in one process."""
    stages = [Stage(Rows, replicas=3), Stage(Rows, replicas=2), Stage(Scores)]
    async with pipeline(stages, loss=word_loss, optimizer=adam()) as pipe:
        oracle = Oracle(modules(stages), word_loss, adam)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for seed in range(3):
            ids = np.random.default_rng(seed).integers(0, 20, (5, 3))
            assert await pipe.step(ids, ids) == pytest.approx(oracle.step(ids, ids), abs=1e-12)
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_buffers_are_those_of_the_first() -> None:
    """The first runs micro-batches 0 and 2, as if they were all that there is."""
    x, y = data(32)
    stages = [Stage(Normed, replicas=2), Stage(Head)]
    async with pipeline(stages, loss=F.cross_entropy, microbatches=4) as pipe:
        alone = Oracle(modules(stages), F.cross_entropy, adam, 2)
        alone.whole.load_state_dict(await pipe.state_dict())
        await pipe.step(x, y)
        rows = [*range(8), *range(16, 24)]
        alone.gradients(x[rows], y[rows])
        state = await pipe.state_dict()
        np.testing.assert_allclose(
            state["0.norm.running_mean"], alone.stages[0].get_buffer("norm.running_mean"), rtol=1e-12
        )


async def test_a_run_that_failed_on_one_replica_does_not_disturb_the_next() -> None:
    stages = [Stage(Faulty, replicas=2), Stage(Normed, replicas=2), Stage(Head)]
    async with pipeline(stages, loss=F.cross_entropy, optimizer=optim.SGD(lr=0.1), microbatches=4) as pipe:
        seed = pipe._driver._ranks.plan.seed
        oracle = Oracle(modules(stages), F.cross_entropy, lambda p: optim.SGD(p, lr=0.1), 4, seed)
        oracle.whole.load_state_dict(await pipe.state_dict())
        state = await pipe.state_dict()
        for step in range(3):
            x, y = data(16, step)
            x[:, 0] = np.abs(x[:, 0])
            bad = x.copy()
            bad[4 * (step + 1), 0] = -1
            with pytest.raises(ValueError, match="a negative number"):
                await pipe.step(bad, y)
            if step == 0:
                after = await pipe.state_dict()
                assert all((state[name] == after[name]).all() for name in state)
            await pipe.step(x, y)
            oracle.step(x, y)
        state = await pipe.state_dict()
        for name, array in oracle.whole.state_dict().items():
            if "running" not in name and "num_batches" not in name:  # which are those of the first replica
                np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-12, err_msg=name)


class Group:
    """Of one that waits for nobody."""

    size = 2

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def process_group(self, *_: Any, **__: Any) -> "Group":
        return self

    async def all_reduce(self, *_: Any, **__: Any) -> None:
        pass

    async def close(self) -> None:
        self.closed.set()


async def test_a_group_is_left_when_nobody_refers_to_the_replica_any_more() -> None:
    """Nobody closes it when the driver has died."""
    plan, group = PipePlan("pipe", 1, (("a", "b"),), 1, "1f1b", 0), Group()
    stages = {0: build(plan, StagePlan(0, Head))}
    replicas = Replicas(group, (0, 0))  # type: ignore[arg-type]
    await replicas.reduce(plan, 1, stages)
    assert not group.closed.is_set()
    del replicas
    await asyncio.wait_for(group.closed.wait(), 5)
