"""The state of a pipe: put together from all ranks, cut again, and tied parameters the same everywhere."""

from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import optim
from psframework.errors import ModelMismatch
from psframework.pipeline.spec import Stage
from tests.support import pipeline_models as models
from tests.support.pipeline_world import pipeline

TRAINING: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": optim.SGD(lr=0.1, momentum=0.9)}


@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved", 2)])
async def test_names_are_in_the_order_of_the_stages(schedule: str, virtual: int) -> None:
    async with pipeline(models.chain(4), schedule=schedule, virtual_stages=virtual, **TRAINING) as pipe:
        names = [f"{stage}.layer.{name}" for stage in range(4) for name in ("weight", "bias")]
        assert list(await pipe.state_dict()) == names


async def test_replicas_get_the_same() -> None:
    stages = [Stage(models.Hidden, replicas=2), Stage(models.Head)]
    async with pipeline(stages, **TRAINING) as pipe:
        state = {name: array + 1 for name, array in (await pipe.state_dict()).items()}
        await pipe.load_state_dict(state)
        x, _ = models.data(4)
        one, other = [await pipe.infer(x[:1]), (await pipe.infer(np.repeat(x[:1], 2, 0)))[1:]]
        np.testing.assert_array_equal(one, other)  # the second micro-batch is the second replica's


async def test_tied_parameters_get_the_values_of_the_first() -> None:
    stages = [(models.Table, ()), (models.Scores, ())]
    tie = ("0.table.weight", "1.weight")
    async with pipeline(stages, loss=models.word_loss, ties=[tie]) as pipe:
        state = await pipe.state_dict()
        np.testing.assert_array_equal(state[tie[0]], state[tie[1]])
        await pipe.load_state_dict({tie[0]: state[tie[0]] + 1, tie[1]: state[tie[1]] - 1})
        for name in tie:
            np.testing.assert_array_equal((await pipe.state_dict())[name], state[tie[0]] + 1)


async def test_what_one_stage_refuses_is_loaded_nowhere() -> None:
    async with pipeline(models.chain(2), **TRAINING) as pipe:
        before = await pipe.state_dict()
        wrong = {name: array + 1 for name, array in before.items()}
        wrong["1.layer.bias"] = np.zeros(7)
        for state in (wrong, {name: array + 1 for name, array in before.items() if name != "1.layer.bias"}):
            with pytest.raises(ModelMismatch, match=r"stage 1: .*layer\.bias"):
                await pipe.load_state_dict(state)
        for name, array in (await pipe.state_dict()).items():
            np.testing.assert_array_equal(array, before[name])
