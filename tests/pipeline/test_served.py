"""Stages whose parameters are on a parameter server equal one process; each update is made once."""

from typing import Any
from unittest.mock import AsyncMock, patch

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import optim
from psframework.errors import ArgumentError, NameTaken, PeerLost
from psframework.pipeline.plan import StagePlan
from psframework.pipeline.served import Served
from psframework.pipeline.spec import Stage
from tests.support.pipeline_models import Head, Hidden, Normed, data
from tests.support.pipeline_oracle import Oracle, adam, modules
from tests.support.pipeline_world import driver_service, pipeline, shelves

PLAN = StagePlan(0, None, rule=optim.SGD(lr=1.0).rule.spec(), parameter_server="table")
OPTIMIZERS = {
    "sgd": lambda *parameters: optim.SGD(*parameters, lr=0.1, momentum=0.9),
    "adam": adam,
}


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_equals_one_process(place: int, optimizer: str, max_norm: float | None) -> None:
    made = OPTIMIZERS[optimizer]
    names = ["", "", ""]
    names[place] = "table"
    stages = [Stage(kind, parameter_server=name) for kind, name in zip([Hidden, Normed, Head], names)]
    async with pipeline(stages, loss=F.cross_entropy, optimizer=made(), max_norm=max_norm) as pipe:
        seed = pipe._driver._ranks.plan.seed
        oracle = Oracle(modules(stages), F.cross_entropy, made, seed=seed)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for step in range(3):
            x, y = data(40, step)
            loss = oracle.gradients(x, y)
            if max_norm is not None:
                optim.clip_grad_norm_(oracle.whole.parameters(), max_norm)
            oracle.optimizer.step()
            oracle.steps += 1
            assert await pipe.step(x, y) == pytest.approx(loss, abs=1e-12)
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def stage() -> tuple[Served, Any]:
    """One alone, and its server."""
    served = Served(Hidden(), None)
    with shelves():
        await served.open(driver_service(1), "default", PLAN)  # type: ignore[arg-type]
    return served, served._server


class Trainers:
    """Who trains the model, each time that somebody asks: the last answer stays."""

    def __init__(self, *answers: dict[int, str]) -> None:
        self.answers = list(answers)

    async def __call__(self, *_: Any) -> dict[int, str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def opened(trainers: Trainers, slot: int = 1, *, first: bool = True) -> Any:
    """The server of a stage that is opened while others train, or did."""
    server = AsyncMock(slot=slot, step=0)
    with (
        patch("psframework.pipeline.served.open_parameter_server", AsyncMock(return_value=server)),
        patch("psframework.pipeline.served.trainers_of", trainers),
        patch("psframework.pipeline.served._SECONDS", 0.0 if len(trainers.answers) == 1 else 30.0),
    ):
        served = Served(Hidden(), None)
        await served.open(driver_service(1), "default", PLAN, first=first)  # type: ignore[arg-type]
    return server


async def test_a_model_that_another_trains_is_taken() -> None:
    words = "stage-2 already trains the model 'table' on the parameter server, where stage 0 was to have"
    with pytest.raises(NameTaken, match=words):
        await opened(Trainers({0: "stage-2"}))


async def test_who_leaves_is_waited_for() -> None:
    assert not (await opened(Trainers({0: "stage-2"}, {0: "stage-2"}, {}, {1: "stage-0"}))).close.called


async def test_of_two_that_come_at_once_the_later_one_leaves() -> None:
    both = {1: "stage-2", 2: "stage-0"}
    with pytest.raises(NameTaken, match="stage-2 already trains"):
        await opened(Trainers({}, both), slot=2)
    assert not (await opened(Trainers({}, both), slot=1)).close.called


async def test_the_one_that_is_replaced_is_not_in_the_way() -> None:
    assert not (await opened(Trainers({0: "stage-2"}), first=False)).close.called


async def test_whoever_restores_a_commit_pushes_what_was_not_pushed() -> None:
    served, server = await stage()
    before = served.named("layer.bias").copy()
    served.parameters["layer.bias"].grad = np.ones_like(before)
    served.step()
    np.testing.assert_array_equal(served.named("layer.bias"), before)
    commit = served.snapshot()
    assert "layer.bias" not in commit["module"]
    served.restore(commit)
    await served.push()
    np.testing.assert_array_equal(served.named("layer.bias"), before - 1)
    served.restore(commit)
    await served.push()
    np.testing.assert_array_equal(served.named("layer.bias"), before - 1)
    assert server.step == 1


async def test_a_push_that_failed_is_made_once() -> None:
    served, server = await stage()
    before = served.named("layer.bias").copy()
    served.parameters["layer.bias"].grad = np.ones_like(before)
    served.step()
    commit = served.snapshot()
    push_pull = server.push_pull

    async def lost(timeout: float | None = None) -> None:
        await push_pull(timeout)
        raise PeerLost("after the server had it", reason="test")

    server.push_pull = lost
    with pytest.raises(PeerLost):
        await served.push()
    server.push_pull = push_pull
    served.restore(commit)
    await served.push()
    np.testing.assert_array_equal(served.named("layer.bias"), before - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": None}, "it needs optimizer="),
        ({"commit_every": 2}, "commit_every=1"),
        ({"precision": "bfloat16"}, "nor another precision"),
    ],
)
async def test_what_does_not_go_together(change: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": optim.SGD(lr=0.1)} | change
    with pytest.raises(ArgumentError, match=words):
        async with pipeline([Stage(Head, parameter_server="table")], **options):
            pass


async def test_a_state_is_not_loaded_past_the_server() -> None:
    async with pipeline(
        [Stage(Head, parameter_server="table")], loss=F.cross_entropy, optimizer=optim.SGD(lr=0.1)
    ) as pipe:
        with pytest.raises(ArgumentError, match="stage 0 has its parameters on the parameter server"):
            await pipe.load_state_dict(await pipe.state_dict())
