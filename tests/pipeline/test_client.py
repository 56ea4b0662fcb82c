"""What users have of a pipe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.errors import ArgumentError, ContextClosed, ModelMismatch
from tests.support.pipeline_models import chain, data
from tests.support.pipeline_oracle import Oracle, modules
from tests.support.pipeline_world import pipeline

TRAINING: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": optim.SGD(lr=0.1, momentum=0.9)}


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("drivers", [0, 1])
async def test_it_says_what_it_is(drivers: int) -> None:
    async with pipeline(chain(2), drivers=drivers, **TRAINING) as pipe:
        assert repr(pipe) == "<Pipeline on stage-0, stage-1: 0 steps>"
        for update in (False, True):
            await pipe.step(*data(8), update=update)
        assert repr(pipe) == "<Pipeline on stage-0, stage-1: 1 steps>"
    assert repr(pipe) == "<Pipeline on stage-0, stage-1: closed>"


@pytest.mark.parametrize("drivers", [0, 1])
async def test_gradients_add_up_until_an_update(drivers: int) -> None:
    async with pipeline(chain(2), drivers=drivers, **TRAINING) as pipe:
        oracle = Oracle(modules(chain(2)), F.cross_entropy, sgd)
        before = await pipe.state_dict()
        oracle.whole.load_state_dict(before)
        sums: dict[Any, Any] = {}
        for seed in range(3):
            x, y = data(10, seed)
            oracle.gradients(x, y)
            for each in oracle.whole.parameters():
                sums[each] = sums.get(each, 0) + each.grad
            await pipe.step(x, y, update=seed == 2)
            if seed < 2:
                assert oracle.difference(await pipe.state_dict()) == 0
        for each, total in sums.items():
            each.grad = total
        oracle.optimizer.step()
        assert oracle.difference(await pipe.state_dict()) < 1e-12


@pytest.mark.parametrize("drivers", [0, 1])
async def test_evaluation_changes_nothing(drivers: int) -> None:
    async with pipeline(chain(3), drivers=drivers, **TRAINING) as pipe:
        x, y = data(21)
        before = await pipe.state_dict()
        first = await pipe.evaluate(x, y)
        after = await pipe.state_dict()
        assert all((before[name] == after[name]).all() for name in before)
        assert await pipe.step(x, y) == pytest.approx(first, abs=1e-12)
        assert await pipe.evaluate(x, y) < first


@pytest.mark.parametrize("drivers", [0, 1])
async def test_the_newest_step_can_be_looked_at(drivers: int, tmp_path: Path) -> None:
    async with pipeline(chain(3), drivers=drivers, microbatches=8, **TRAINING) as pipe:
        for look in (lambda: pipe.peak_activations, lambda: pipe.bubble, lambda: pipe.spans, pipe.timeline):
            with pytest.raises(ArgumentError, match="no step of this pipeline has ended"):
                look()
        await pipe.step(*data(16))
        await pipe.infer(data(4)[0])  # is no step
        assert pipe.peak_activations == {0: 3, 1: 2, 2: 1}
        assert 0 <= pipe.bubble < 1
        assert {span.kind for span in pipe.spans} == {"F", "B", "U"} and len(pipe.spans) % 3 == 0
        drawing = pipe.timeline(tmp_path / "run.svg")
        assert (tmp_path / "run.svg").read_text() == drawing.svg == pipe.timeline().svg
        for text in ("stage-0", "stage-2", "forward, stage 0, micro-batch 7", "update, stage 2", "bubble: "):
            assert text in drawing.svg


async def test_tensors_are_taken_as_their_arrays() -> None:
    async with pipeline(chain(2), drivers=1, **TRAINING) as pipe:
        x, y = data(8)
        tensor = psf.tensor(x, requires_grad=True)
        assert await pipe.evaluate(tensor, y) == pytest.approx(await pipe.evaluate(x, y))
        np.testing.assert_array_equal(await pipe.infer(tensor), await pipe.infer(x))
        await pipe.step(tensor, psf.tensor(y))


@pytest.mark.parametrize("drivers", [0, 1])
async def test_states_go_in_and_out(drivers: int) -> None:
    async with pipeline(chain(2), drivers=drivers, **TRAINING) as pipe:
        state = await pipe.state_dict()
        await pipe.load_state_dict({name: psf.tensor(array * 2) for name, array in state.items()})
        for name, array in (await pipe.state_dict()).items():
            np.testing.assert_array_equal(array, state[name] * 2)
        with pytest.raises(ModelMismatch, match=r"no 7\.weight"):
            await pipe.load_state_dict({"7.weight": np.zeros(3)})


@pytest.mark.parametrize("drivers", [0, 1])
async def test_closed_is_closed(drivers: int) -> None:
    async with pipeline(chain(2), drivers=drivers, **TRAINING) as pipe:
        await pipe.step(*data(8))
        await pipe.close()
        await pipe.close()
        for call in (pipe.step(*data(8)), pipe.evaluate(*data(8)), pipe.infer(data(8)[0]), pipe.state_dict()):
            with pytest.raises(ContextClosed):
                await call
        assert 0 <= pipe.bubble < 1  # of the newest step, still
