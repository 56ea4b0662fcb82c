"""Tied parameters: their gradients are summed over stages, and copies stay equal to the bit."""

from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim
from psframework.errors import ArgumentError
from tests.support.pipeline_models import WIDTH, Hidden, Rows, Scores, Table, word_loss
from tests.support.pipeline_oracle import Oracle, adam, modules
from tests.support.pipeline_world import pipeline

STAGES = [(Table, ()), (Hidden, ()), (Scores, ())]
TIES = [("0.table.weight", "2.weight")]


def words(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Words, and those that follow them."""
    ids = np.random.default_rng(seed).integers(0, 20, (rows, 7))
    return ids[:, :-1], ids[:, 1:]


async def assert_equals_one_process(pipe: Any, oracle: Oracle) -> None:
    for seed in range(3):
        x, y = words(11, seed)
        assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
    assert oracle.difference(await pipe.state_dict()) < 1e-12


@pytest.mark.parametrize(
    ("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved", 3)]
)
async def test_copies_get_the_sum_of_all_gradients(schedule: str, virtual: int) -> None:
    async with pipeline(
        STAGES,
        loss=word_loss,
        optimizer=adam(),
        ties=TIES,
        schedule=schedule,
        virtual_stages=virtual,
    ) as pipe:
        first, middle, last = modules(STAGES)
        last.weight = first.table.weight
        oracle = Oracle([first, middle, last], word_loss, adam)
        state = await pipe.state_dict()
        np.testing.assert_array_equal(state["0.table.weight"], state["2.weight"])
        oracle.whole.load_state_dict(state)
        await assert_equals_one_process(pipe, oracle)
        state = await pipe.state_dict()
        np.testing.assert_array_equal(state["0.table.weight"], state["2.weight"])


async def test_they_are_found_where_a_sequential_uses_a_parameter_twice() -> None:
    parts = modules(STAGES)
    parts[2].weight = parts[0].table.weight
    oracle = Oracle(parts, word_loss, adam)
    async with pipeline(oracle.whole, 3, loss=word_loss, optimizer=adam()) as pipe:
        await assert_equals_one_process(pipe, oracle)


async def test_a_parameter_twice_in_one_stage_and_in_another() -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, dtype=np.float64) for _ in range(4)])
    model[1].weight = model[3].weight = model[0].weight
    oracle = Oracle([model], F.mse_loss, adam)
    async with pipeline(model, balance=[2, 2], loss=F.mse_loss, optimizer=adam()) as pipe:
        for seed in range(3):
            x, y = np.random.default_rng(seed).normal(size=(2, 11, WIDTH))
            assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
        state = await pipe.state_dict()
        assert oracle.difference({f"0.{name}": array for name, array in state.items()}) < 1e-12


async def test_replicas_of_tied_stages() -> None:
    stages = [psf.pipeline.Stage(Table, replicas=2), (Hidden, ()), psf.pipeline.Stage(Scores, replicas=3)]
    async with pipeline(stages, loss=word_loss, optimizer=adam(), ties=TIES) as pipe:
        first, middle, last = modules(stages)
        last.weight = first.table.weight
        oracle = Oracle([first, middle, last], word_loss, adam)
        oracle.whole.load_state_dict(await pipe.state_dict())
        await assert_equals_one_process(pipe, oracle)


@pytest.mark.parametrize(("schedule", "virtual"), [("zb-h1", 1), ("interleaved", 3)])
async def test_gradients_that_are_rows_stay_so(schedule: str, virtual: int) -> None:
    """Adam leaves rows alone that no micro-batch has used, as in one process."""
    stages = [(Rows, ()), (Rows, ()), (Scores, ())]
    async with pipeline(
        stages,
        loss=word_loss,
        optimizer=adam(),
        ties=[("0.table.weight", "1.table.weight")],
        schedule=schedule,
        virtual_stages=virtual,
    ) as pipe:
        first, second, last = modules(stages)
        second.table.weight = first.table.weight
        oracle = Oracle([first, second, last], word_loss, adam)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for seed in range(3):
            x, y = words(2, seed)
            assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_a_copy_counts_once_in_the_norm() -> None:
    async with pipeline(
        STAGES, loss=word_loss, optimizer=optim.SGD(lr=0.1), ties=TIES, max_norm=0.01
    ) as pipe:
        first, middle, last = modules(STAGES)
        last.weight = first.table.weight
        oracle = Oracle([first, middle, last], word_loss, lambda p: optim.SGD(p, lr=0.1))
        oracle.whole.load_state_dict(await pipe.state_dict())
        x, y = words(8, 0)
        await pipe.step(x, y)
        oracle.gradients(x, y)
        assert optim.clip_grad_norm_(oracle.whole.parameters(), 0.01) > 0.01
        oracle.optimizer.step()
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_what_is_loaded_is_the_same_in_all_copies() -> None:
    async with pipeline(STAGES, loss=word_loss, ties=TIES) as pipe:
        state = await pipe.state_dict()
        state["0.table.weight"] = np.full((20, WIDTH), 2.0)
        await pipe.load_state_dict(state)
        assert ((await pipe.state_dict())["2.weight"] == 2).all()


async def test_a_name_that_no_stage_has() -> None:
    with pytest.raises(ArgumentError, match=r"no parameter 'words.weight'.*table.weight"):
        async with pipeline(STAGES, loss=word_loss, ties=[("0.words.weight", "2.weight")]):
            pass


async def test_shapes_that_differ() -> None:
    stages = [(Table, (WIDTH, 30)), (Hidden, ()), (Scores, ())]
    with pytest.raises(
        ArgumentError, match=r"table.weight of stage 0 has shape \(30, 12\).*weight of stage 2"
    ):
        async with pipeline(stages, loss=word_loss, ties=TIES):
            pass
