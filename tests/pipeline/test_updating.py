"""The end of a step: precision, the scale of the loss, clipping over all stages."""

from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import backend, nn, optim
from tests.support.pipeline_models import CLASSES, WIDTH, Dropped, Head, Small, chain, data, square_loss
from tests.support.pipeline_oracle import Oracle, modules
from tests.support.pipeline_world import pipeline


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


DESCRIBED = optim.SGD(lr=0.1, momentum=0.9)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
async def test_the_norm_is_that_of_all_stages(schedule: str) -> None:
    async with pipeline(
        chain(3), loss=F.cross_entropy, optimizer=DESCRIBED, max_norm=0.1, schedule=schedule
    ) as pipe:
        oracle = Oracle(modules(chain(3)), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for seed in range(3):
            x, y = data(21, seed)
            await pipe.step(x, y)
            oracle.gradients(x, y)
            assert optim.clip_grad_norm_(oracle.whole.parameters(), 0.1) > 0.1
            oracle.optimizer.step()
        assert oracle.difference(await pipe.state_dict()) < 1e-12


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
async def test_sixteen_bits(precision: str, schedule: str) -> None:
    """To the bit: float32 masters, loss in float32, gradients of micro-batches summed in float32."""
    stages = [(Small, ()), (Small, ()), (Small, (WIDTH, CLASSES))]
    async with pipeline(
        stages, loss=F.cross_entropy, optimizer=DESCRIBED, precision=precision, schedule=schedule
    ) as pipe:
        dtype = backend.dtype_from_name(precision)
        parts = [module.to(dtype) for module in modules(stages)]
        oracle = Oracle(parts, F.cross_entropy, sgd)
        state = await pipe.state_dict()
        assert {array.dtype for array in state.values()} == {dtype}
        oracle.whole.load_state_dict(state)
        scaler = optim.GradScaler(enabled=precision == "float16")
        for seed in range(3):
            x, y = data(21, seed)
            loss = oracle.gradients(x, y, scaler.get_scale(), dtype)
            assert await pipe.step(x, y) == pytest.approx(loss, abs=1e-7)
            scaler.step(oracle.optimizer)
            scaler.update()
        assert oracle.difference(await pipe.state_dict()) == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
async def test_an_overflow_in_one_stage_skips_the_step_in_all() -> None:
    stages = [(Small, ()), (Small, ()), (Small, ())]
    x = data(8)[0]
    async with pipeline(stages, loss=square_loss, optimizer=DESCRIBED, precision="float16") as pipe:
        before = await pipe.state_dict()
        await pipe.step(x, np.full((8, WIDTH), 1e4, np.float32))
        after = await pipe.state_dict()
        assert all((before[name] == after[name]).all() for name in before)
        for _ in range(20):  # until the scale is small enough
            await pipe.step(x, np.full((8, WIDTH), 1e4, np.float32))
        changed = await pipe.state_dict()
        assert not any((before[name] == changed[name]).all() for name in before)
        assert all(np.isfinite(array.astype(float)).all() for array in changed.values())


async def test_batches_of_one_step_drop_apart() -> None:
    stages = [(Dropped, ()), (Head, ())]
    async with pipeline(stages, loss=F.cross_entropy, optimizer=optim.SGD(lr=0.0)) as pipe:
        x, y = data(10)
        losses = {await pipe.step(x, y, update=False) for _ in range(3)}
        assert len(losses | {await pipe.step(x, y)}) == 4


async def test_gradients_of_several_batches_are_added_up() -> None:
    async with pipeline(chain(2), loss=F.cross_entropy, optimizer=DESCRIBED) as pipe:
        oracle = Oracle(modules(chain(2)), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        sums: dict[nn.Parameter, Any] = {}
        for seed in range(2):
            x, y = data(10, seed)
            await pipe._driver.step(x, y, update=seed == 1)
            oracle.gradients(x, y)
            for each in oracle.whole.parameters():
                sums[each] = sums.get(each, 0) + each.grad
        for each, total in sums.items():
            each.grad = total
        oracle.optimizer.step()
        assert oracle.difference(await pipe.state_dict()) < 1e-12
