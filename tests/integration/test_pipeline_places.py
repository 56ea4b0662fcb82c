"""Stages that are replicated, or on a parameter server, and whose services die: each update is made once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.pipeline.spec import Stage
from tests.support.pipeline_faults import Fatal, arm
from tests.support.pipeline_models import Dropped, Head, Hidden, Normed, data
from tests.support.pipeline_oracle import Oracle, modules

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVICES = 5


def described(*parameters: Any) -> optim.Optimizer:
    return optim.SGD(*parameters, lr=0.1, momentum=0.9)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[tuple[Any, Any]]:
    imports = ("tests.support.pipeline_faults",)
    async with psf.local_cluster(stages=SERVICES, pipelines=1, parameter_servers=1, imports=imports) as local:
        async with psf.connect(local.address) as cluster:
            yield local, cluster


def armed(trigger: Path) -> bool:
    """Whether what was to happen has not happened."""
    return trigger.exists()


async def whole(local: Any, cluster: Any) -> None:
    """Services that have died are started again."""
    for number in range(SERVICES):
        if not local.processes[f"stage-{number}"].alive:
            await local.restart(f"stage-{number}")
    async with asyncio.timeout(30):
        while len(cluster.members("pipeline-stage")) < SERVICES:  # noqa: ASYNC110 - a view
            await asyncio.sleep(0.02)


async def assert_equals_one_process(
    bench: Any, trigger: Path, stages: list[Stage], dies: tuple[int, str], driver: str | None = None
) -> None:
    """Steps, in the second of which a service of a stage is killed in a phase."""
    local, cluster = bench
    await whole(local, cluster)
    stage, phase = dies
    async with await cluster.pipeline(
        stages, loss=F.cross_entropy, optimizer=described(), microbatches=8, driver=driver
    ) as pipe:
        seed = None if driver is None else pipe._driver._ranks.plan.seed
        oracle = Oracle(modules(stages), F.cross_entropy, described, seed=seed)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for step in range(4):
            if step == 1:
                arm(trigger, stage, phase)
            x, y = data(24, step)
            assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
            assert not armed(trigger), "nothing died"
        assert oracle.difference(await pipe.state_dict()) < 1e-12


def cases(quick: list[tuple[int, str]], others: list[tuple[int, str]]) -> list[Any]:
    """Which stage dies in which phase."""
    return [
        pytest.param(dies, id=f"{dies[0]}-{dies[1]}", marks=[] if dies in quick else pytest.mark.soak)
        for dies in (*quick, *others)
    ]


@pytest.mark.parametrize("dies", cases([(1, "optimizer"), (2, "drain")], [(0, "forward"), (1, "steady")]))
async def test_a_replica_or_a_stage_beside_it_dies(bench: Any, tmp_path: Path, dies: tuple[int, str]) -> None:
    trigger = tmp_path / "trigger"
    stages = [
        Stage(Fatal, (stage, stage == 2, str(trigger)), replicas=1 + (stage == 1)) for stage in range(3)
    ]
    await assert_equals_one_process(bench, trigger, stages, dies)


@pytest.mark.parametrize(
    "dies",
    cases(
        [(1, "drain"), (1, "commit")],
        [(1, "forward"), (1, "optimizer"), (0, "optimizer"), (2, "commit")],
    ),
)
async def test_a_stage_dies_in_a_pipe_with_a_parameter_server(
    bench: Any, tmp_path: Path, dies: tuple[int, str]
) -> None:
    trigger = tmp_path / "trigger"
    stages = [
        Stage(Fatal, (0, False, str(trigger))),
        Stage(Fatal, (1, False, str(trigger)), parameter_server=f"served-{dies[0]}-{dies[1]}"),
        Stage(Fatal, (2, True, str(trigger))),
    ]
    await assert_equals_one_process(bench, trigger, stages, dies)


async def test_a_pipe_waits_until_another_has_left_the_model_that_it_shares(bench: Any) -> None:
    local, cluster = bench
    await whole(local, cluster)

    async def opened(on: list[str]) -> Any:
        stages = [Stage(Hidden, parameter_server="shared"), Stage(Head)]
        return await cluster.pipeline(stages, loss=F.cross_entropy, optimizer=described(), on=on)

    async with await opened(["stage-0", "stage-1"]) as pipe:
        oracle = Oracle(modules([(Hidden,), (Head,)]), F.cross_entropy, described)
        oracle.whole.load_state_dict(await pipe.state_dict())
        opening = asyncio.ensure_future(opened(["stage-2", "stage-3"]))
        for step in range(20):
            x, y = data(24, step)
            assert await pipe.step(x, y, timeout=20) == pytest.approx(oracle.step(x, y), abs=1e-12)
        state = await pipe.state_dict()
        assert oracle.difference(state) < 1e-12
    async with await opening as other:
        assert ((await other.state_dict())["0.layer.weight"] == state["0.layer.weight"]).all()
        await other.step(*data(24), timeout=20)


@pytest.mark.parametrize("dies", cases([(0, "drain")], [(3, "forward")]))
async def test_what_is_done_again_draws_and_measures_the_same(
    bench: Any, tmp_path: Path, dies: tuple[int, str]
) -> None:
    """Dropout, and the running statistics of a batch norm whose stage lives on."""
    trigger = tmp_path / "trigger"
    stages = [
        Stage(Fatal, (0, False, str(trigger))),
        Stage(Normed),
        Stage(Dropped),
        Stage(Fatal, (3, True, str(trigger))),
    ]
    await assert_equals_one_process(bench, trigger, stages, dies, driver="here")


async def test_an_update_that_is_late_is_named_and_made_once(bench: Any, tmp_path: Path) -> None:
    """It was held until the gradients of all stages were known."""
    await whole(*bench)
    trigger = tmp_path / "trigger"
    stages = [Stage(Fatal, (stage, stage == 2, str(trigger))) for stage in range(3)]
    async with await bench[1].pipeline(
        stages, loss=F.cross_entropy, optimizer=described(), max_norm=1e9
    ) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, described)
        oracle.whole.load_state_dict(await pipe.state_dict())
        x, y = data(24)
        arm(trigger, 1, "optimizer", "3")
        with pytest.raises(psf.DeadlineExceeded, match=r"stage 1 on .* computing U of stage 1"):
            await pipe.step(x, y, timeout=1.5)
        assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
        assert oracle.difference(await pipe.state_dict()) < 1e-12
