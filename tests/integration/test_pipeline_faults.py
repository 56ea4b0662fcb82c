"""Pipelines whose stages die, stand still or fail: steps are done again, or an error names the stage."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import psframework as psf
import psframework.nn.functional as F
from psframework.errors import DeadlineExceeded, PeerLost, RemoteError
from tests.support.pipeline_bench import STAGES, Bench, check, step
from tests.support.pipeline_faults import PHASES, Fatal, arm, fatal
from tests.support.pipeline_models import data

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROWS, STEPS = 18, 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    trigger = tmp_path_factory.mktemp("faults") / "trigger"
    imports = ("tests.support.pipeline_faults",)
    async with psf.local_cluster(stages=STAGES + 1, imports=imports) as local:
        async with psf.connect(local.address) as cluster:
            yield Bench(local, cluster, trigger)


QUICK = [(0, "forward"), (1, "steady"), (2, "drain"), (0, "optimizer"), (1, "commit")]
EACH = [
    pytest.param(stage, phase, marks=[] if (stage, phase) in QUICK else pytest.mark.soak)
    for stage in range(STAGES)
    for phase in PHASES
]


@pytest.mark.parametrize(("stage", "phase"), EACH)
async def test_a_stage_that_dies_is_replaced_and_the_step_done_again(
    bench: Bench, stage: int, phase: str
) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open() as pipe:
        model, own = bench.twin(await pipe.state_dict())
        for seed in range(STEPS):
            x, y = data(ROWS, seed)
            if seed == 1:
                arm(bench.trigger, stage, phase)
            assert await pipe.step(x, y, timeout=60) == pytest.approx(step(model, own, x, y), abs=1e-12)
        assert not bench.trigger.exists()
        check(await pipe.state_dict(), model)


async def test_two_stages_that_die_one_after_the_other_between_commits(bench: Bench) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open(commit_every=3) as pipe:
        model, own = bench.twin(await pipe.state_dict())
        for seed in range(6):
            x, y = data(ROWS, seed)
            if seed in (1, 4):
                await bench.whole(STAGES + 1)
                arm(bench.trigger, seed % 3, "steady")
            assert await pipe.step(x, y, timeout=60) == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)


async def test_a_service_that_is_back_at_once_holds_no_stage_any_more(bench: Bench) -> None:
    """Its name leads to another life, perhaps before anybody has noticed that the first one ended."""
    await bench.whole(STAGES + 1)
    async with await bench.open() as pipe:
        model, own = bench.twin(await pipe.state_dict())
        for seed, during in enumerate([False, True, False]):
            x, y = data(ROWS, seed)
            name = pipe._driver.services[1]
            if not during:
                await bench.local.restart(name)
            task = asyncio.create_task(pipe.step(x, y, timeout=60))
            if during:
                await bench.local.restart(name)
            assert await task == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)


async def test_without_another_service_the_error_names_the_stage_and_the_rest_stand_at_the_last_commit(
    bench: Bench,
) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open() as other, await bench.open(on=["stage-1", "stage-2", "stage-3"]) as pipe:
        bench.local.processes["stage-0"].kill()
        await bench.local.processes["stage-0"].wait_ended()
        model, own = bench.twin(await pipe.state_dict())
        x, y = data(ROWS)
        await pipe.step(x, y)
        step(model, own, x, y)
        arm(bench.trigger, 1, "drain")
        began = time.monotonic()
        with pytest.raises(PeerLost, match="stage 1 on stage-2") as raised:
            await pipe.step(*data(ROWS, 1), timeout=4)
        assert time.monotonic() - began < 8 and raised.value.peer == "stage-2"
        await bench.local.restart("stage-2")
        check(await pipe.state_dict(timeout=30), model)
        x, y = data(ROWS, 2)
        assert await pipe.step(x, y, timeout=30) == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)
        del other


async def test_a_slow_stage_is_named_and_the_pipe_goes_on_afterwards(bench: Bench) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open() as pipe:
        model, own = bench.twin(await pipe.state_dict())
        arm(bench.trigger, 1, "steady", "3")
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"stage 1 on stage-1 has been computing"):
            await pipe.step(*data(ROWS), timeout=1)
        assert time.monotonic() - began < 3
        x, y = data(ROWS, 1)
        assert await pipe.step(x, y, timeout=30) == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)


async def test_a_stage_that_stands_still_is_named_or_replaced(bench: Bench) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open() as pipe:
        model, own = bench.twin(await pipe.state_dict())
        arm(bench.trigger, 2, "forward", "stop")
        with pytest.raises(DeadlineExceeded, match=r"stage 2 on stage-2 does not answer"):
            await pipe.step(*data(ROWS), timeout=1)
        x, y = data(ROWS, 1)
        assert await pipe.step(x, y, timeout=60) == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)
    bench.local.processes["stage-2"].kill()
    await bench.local.processes["stage-2"].wait_ended()


async def test_a_fault_of_a_stage_is_raised_with_its_place_and_the_step_did_not_happen(bench: Bench) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open() as pipe:
        model, own = bench.twin(await pipe.state_dict())
        for phase in ("steady", "drain", "optimizer", "commit"):
            arm(bench.trigger, 1, phase, "error")
            with pytest.raises(RemoteError, match="a fault of the stage"):
                await pipe.step(*data(ROWS))
            x, y = data(ROWS, 1)
            assert await pipe.step(x, y) == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)


async def test_a_step_that_is_cancelled_did_not_happen(bench: Bench) -> None:
    await bench.whole(STAGES + 1)
    async with await bench.open() as pipe:
        model, own = bench.twin(await pipe.state_dict())
        for seconds in (0.0, 0.005, 0.01, 0.02):
            task = asyncio.create_task(pipe.step(*data(ROWS)))
            await asyncio.sleep(seconds)
            done = task.done()
            task.cancel()
            await asyncio.wait([task])
            if done or not task.cancelled():
                step(model, own, *data(ROWS))
        x, y = data(ROWS, 1)
        assert await pipe.step(x, y) == pytest.approx(step(model, own, x, y), abs=1e-12)
        check(await pipe.state_dict(), model)


async def test_closing_and_a_driver_that_dies_free_the_stages(bench: Bench) -> None:
    await bench.whole(STAGES + 1)
    cluster = bench.cluster
    pipe = await bench.open()
    assert await cluster.rpc_async("stage-0", Fatal.living) == 1
    await pipe.close()
    await pipe.close()
    async with psf.connect(bench.local.address) as other:
        await other.pipeline(list(fatal(STAGES, bench.trigger)), loss=F.cross_entropy)
        assert await cluster.rpc_async("stage-0", Fatal.living) == 1
        await other.shutdown(graceful=False)
    async with asyncio.timeout(20):
        while await cluster.rpc_async("stage-0", Fatal.living):  # noqa: ASYNC110 - elsewhere
            await asyncio.sleep(0.05)
    with pytest.raises(psf.ContextClosed, match="closed"):
        await pipe.step(*data(ROWS))
