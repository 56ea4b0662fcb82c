"""The driver: steps one at a time, inference between them, and a pipe that always stands at one step."""

import asyncio
from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.errors import ContextClosed, RendezvousTimeout
from psframework.pipeline.driver import Driver
from psframework.pipeline.microbatch import split
from psframework.rpc.deadline import Deadline
from tests.support.pipeline_models import WIDTH, Faulty, chain, data
from tests.support.pipeline_oracle import Oracle, modules
from tests.support.pipeline_world import pipeline

TRAINING: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": optim.SGD(lr=0.1, momentum=0.9)}


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


async def test_answers_are_those_of_the_parameters_between_two_steps() -> None:
    """However steps and requests mix: no request sees one stage before a step and another after it."""
    async with pipeline(chain(3), **TRAINING) as pipe:
        oracle = Oracle(modules(chain(3)), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        x, _ = data(5, 99)
        possible = [oracle.forward(x, 0).data]
        requests = []
        for seed in range(6):
            step = asyncio.ensure_future(pipe.step(*data(16, seed)))
            for _ in range(4):
                requests.append(asyncio.ensure_future(pipe.infer(x)))
                await asyncio.sleep(0.002)
            await step
            oracle.step(*data(16, seed))
            possible.append(oracle.forward(x, 0).data)
        for answer in await asyncio.gather(*requests):
            assert min(np.abs(answer - each).max() for each in possible) < 1e-12
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_steps_that_are_asked_for_at_once_follow_each_other() -> None:
    async with pipeline(chain(2), **TRAINING) as pipe:
        oracle = Oracle(modules(chain(2)), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        losses = await asyncio.gather(*[pipe.step(*data(8, seed)) for seed in range(4)])
        assert losses == pytest.approx([oracle.step(*data(8, seed)) for seed in range(4)], abs=1e-12)
        assert (await pipe.statistics())["steps"] == 4


@pytest.mark.parametrize(("commit_every", "updates"), [(3, [True, True]), (1, [False, False])])
async def test_what_is_done_again_is_what_was_given_though_arrays_are_used_again(
    commit_every: int, updates: list[bool]
) -> None:
    stages = [(Faulty, ()), *chain(2)]
    async with pipeline(stages, commit_every=commit_every, **TRAINING) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        same = data(16)
        for seed, update in enumerate(updates):
            same[0][...], same[1][...] = np.abs(data(16, seed)[0]), data(16, seed)[1]
            await pipe.step(*same, update=update)
        same[0][...] = -1
        with pytest.raises(ValueError, match="a negative number"):
            await pipe.step(*same)
        same[0][...] = 1
        await pipe.step(*same)
        sums: dict[Any, Any] = {}
        for seed, update in enumerate([*updates, True]):
            x = np.abs(data(16, seed)[0]) if seed < len(updates) else np.ones((16, WIDTH))
            oracle.gradients(x, data(16, min(seed, len(updates) - 1))[1])
            for each in oracle.whole.parameters():
                sums[each] = sums.get(each, 0) + each.grad
                each.grad = sums[each]
            if update:
                oracle.optimizer.step()
                sums.clear()
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_requests_go_through_in_several_micro_batches() -> None:
    async with pipeline(chain(2), microbatches=4) as pipe:
        sizes: list[int] = []
        go = pipe._driver._runs.go  # type: ignore[attr-defined]

        async def noted(order: Any, inputs: Any, *rest: Any) -> Any:
            sizes.append(len(inputs))
            return await go(order, inputs, *rest)

        pipe._driver._runs.go = noted  # type: ignore[attr-defined]
        answers = await asyncio.gather(*[pipe.infer(data(3, seed)[0]) for seed in range(6)])
        assert [answer.shape for answer in answers] == [(3, 5)] * 6 and sizes == [4]


async def test_infer_rows_limits_batches() -> None:
    async with pipeline(chain(2), infer_rows=6) as pipe:
        await asyncio.gather(*[pipe.infer(data(3, seed)[0]) for seed in range(8)])
        assert await pipe.statistics() == {"steps": 0, "infer_requests": 8, "infer_batches": 4}


async def test_a_request_that_fails_leaves_the_pipe_as_it_is() -> None:
    async with pipeline([*chain(2), (Faulty, ())], **TRAINING) as pipe:
        before = await pipe.state_dict()
        x = np.zeros((4, 12))
        state = {name: array * 0 - ("bias" in name) for name, array in before.items()}
        await pipe.load_state_dict(state)  # every row is negative now
        with pytest.raises(ValueError, match="a negative number"):
            await pipe.infer(x)
        await pipe.load_state_dict({name: -array for name, array in state.items()})
        assert (await pipe.infer(x) > 0).all()


async def test_closing_ends_what_runs() -> None:
    async with pipeline(chain(2), **TRAINING) as pipe:
        step = asyncio.ensure_future(pipe.step(*data(64)))
        infer = asyncio.ensure_future(pipe.infer(data(64)[0]))
        await asyncio.sleep(0)
        await pipe.close()
        for call in (step, infer):
            with pytest.raises(ContextClosed):
                await asyncio.wait_for(call, 10)


async def test_a_timeout_of_0_is_no_limit() -> None:
    async with pipeline(chain(2), timeout=0, **TRAINING) as pipe:
        x, y = data(8)
        assert await pipe.evaluate(x, y) == pytest.approx(await pipe.step(x, y), abs=1e-12)
        assert (await pipe.infer(x)).shape == (8, 5)


async def test_too_few_services() -> None:
    with pytest.raises(RendezvousTimeout, match="needs 9 stage services, 8 are here"):
        async with pipeline(chain(9), **TRAINING):
            pass


async def test_what_can_not_be_opened_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Driver] = []
    close = Driver.close

    async def noted(driver: Driver) -> None:
        closed.append(driver)
        await close(driver)

    monkeypatch.setattr(Driver, "close", noted)
    monkeypatch.setattr("psframework.pipeline.states.States.share_ties", _fails)
    with pytest.raises(ValueError, match="ties"):
        async with pipeline(chain(2), **TRAINING):
            pass
    assert len(closed) == 1


async def _fails(*_: Any) -> None:
    raise ValueError("ties")


@psf.remote(name="tests.pipeline.size_of")
def size_of(outputs: psf.Tensor, _: None) -> psf.Tensor:
    """A loss without targets."""
    return (outputs * outputs).mean()


async def test_a_loss_that_needs_no_targets() -> None:
    x = data(9)[0]
    async with pipeline(chain(2), loss=size_of, optimizer=None) as pipe:
        assert await pipe.evaluate(x, None) == pytest.approx(await pipe.step(x, None), abs=1e-12)


async def test_an_evaluation_answers_with_losses_alone() -> None:
    async with pipeline(chain(2), loss=F.cross_entropy) as pipe:
        driver = pipe._driver
        x, y = data(9)
        batch = split(x, y, 4)
        reports = await driver._look(batch.inputs, batch.targets, Deadline.after(30))  # type: ignore[attr-defined]
        assert [len(report.losses) for report in reports] == [0, 4]
        assert not any(report.outputs for report in reports)
