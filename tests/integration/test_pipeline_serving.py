"""Pipelines that many use at once, and that a service drives: on real processes."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import psframework as psf
import psframework.nn.functional as F
from psframework import optim
from psframework.errors import (
    DeadlineExceeded,
    NameTaken,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    RemoteError,
)
from tests.support.pipeline_faults import Fatal, arm, fatal
from tests.support.pipeline_models import Doubled, Faulty, Head, Hidden, Reserved, chain, data, reserved_loss
from tests.support.pipeline_oracle import Oracle, modules

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGES = 3
TRAINING: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": optim.SGD(lr=0.1, momentum=0.9)}
DRIVERS = ["here", "pipeline-0"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[Any]:
    imports = ("tests.support.pipeline_faults",)
    async with psf.local_cluster(stages=STAGES, pipelines=1, imports=imports) as local:
        yield local


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(local: Any) -> AsyncIterator[Any]:
    async with psf.connect(local.address) as cluster:
        yield cluster


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


async def freed(cluster: Any) -> None:
    """Waits until the first stage service holds nothing any more."""
    async with asyncio.timeout(20):
        while await cluster.rpc_async("stage-0", Fatal.living):  # noqa: ASYNC110 - elsewhere
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_steps_equal_one_process(cluster: Any, driver: str) -> None:
    async with await cluster.pipeline(chain(3), microbatches=4, driver=driver, **TRAINING) as pipe:
        oracle = Oracle(modules(chain(3)), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        for seed in range(3):
            x, y = data(21, seed)
            assert await pipe.evaluate(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
            assert await pipe.step(x, y) == pytest.approx(await pipe.evaluate(x, y), rel=1)
        assert oracle.difference(await pipe.state_dict()) < 1e-12
        assert repr(pipe) == "<Pipeline on stage-0, stage-1, stage-2: 3 steps>"
        assert (await pipe.statistics())["steps"] == 3
        await pipe.load_state_dict({name: array * 0 for name, array in (await pipe.state_dict()).items()})
        assert not (await pipe.infer(data(3)[0])).any()
    assert repr(pipe) == "<Pipeline on stage-0, stage-1, stage-2: closed>"


@pytest.mark.parametrize("driver", DRIVERS)
async def test_roles_hold_for_what_stages_are_made_of(cluster: Any, driver: str) -> None:
    with pytest.raises(PermissionDenied, match="Reserved"):
        await cluster.pipeline([(Hidden, ()), (Reserved, ()), (Head, ())], driver=driver, **TRAINING)
    with pytest.raises(PermissionDenied, match="reserved_loss"):
        await cluster.pipeline(chain(3), driver=driver, **TRAINING | {"loss": reserved_loss})
    await freed(cluster)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_step_can_be_looked_at(cluster: Any, driver: str, tmp_path: Path) -> None:
    async with await cluster.pipeline(chain(3), driver=driver, **TRAINING) as pipe:
        await pipe.step(*data(16))
        assert pipe.peak_activations == {0: 3, 1: 2, 2: 1}
        assert 0 < pipe.bubble < 1
        drawing = pipe.timeline(tmp_path / "run.svg")
        text = (tmp_path / "run.svg").read_text()
        assert drawing.svg == text and "bubble: " in text
        assert all(f"stage-{number}" in text for number in range(STAGES))
        for action in (
            "forward, stage 0, micro-batch 0",
            "backward, stage 2, micro-batch 7",
            "update, stage 1",
        ):
            assert action in text


@pytest.mark.parametrize("driver", DRIVERS)
async def test_concurrent_requests_run_in_few_batches_and_each_gets_its_own_answer(
    cluster: Any, driver: str
) -> None:
    async with await cluster.pipeline(chain(3), driver=driver) as pipe:
        requests = [data(1 + number % 3, number)[0] for number in range(32)]
        alone = [await pipe.infer(x) for x in requests]
        before = await pipe.statistics()
        together = await asyncio.gather(*map(pipe.infer, requests))
        after = await pipe.statistics()
        for one, other in zip(alone, together):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
        assert after["infer_requests"] - before["infer_requests"] == 32
        assert 1 <= after["infer_batches"] - before["infer_batches"] <= 8


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_request_that_fails_leaves_the_others(cluster: Any, driver: str) -> None:
    async with await cluster.pipeline([(Doubled, ()), (Faulty, ())], driver=driver) as pipe:
        requests = [np.full((2, 12), float(number)) for number in range(8)]
        requests[3] = np.full((2, 12), -1.0)
        requests[5] = np.full((2, 13), 5.0)  # can't be joined to the others
        answers = await asyncio.gather(*map(pipe.infer, requests), return_exceptions=True)
        for number, (x, answer) in enumerate(zip(requests, answers)):
            if number == 3:
                assert isinstance(answer, RemoteError) and "a negative number" in str(answer)
            else:
                np.testing.assert_array_equal(answer, x * 2)


async def test_clients_share_a_pipe_by_its_name(local: Any, cluster: Any) -> None:
    async with await cluster.pipeline(chain(2), name="lm", **TRAINING) as pipe:
        with pytest.raises(NameTaken, match="pipeline-0 already drives a pipeline named 'lm'"):
            await cluster.pipeline(chain(2), name="lm")
        async with psf.connect(local.address) as other:
            x, _ = data(5)
            async with await other.pipeline(None, name="lm") as attached:
                answers = await asyncio.gather(*[each.infer(x) for each in (pipe, attached) * 8])
                for answer in answers:  # of batches of several sizes
                    np.testing.assert_allclose(answer, answers[0], rtol=0, atol=1e-12)
                assert (await attached.statistics())["infer_requests"] == 16
        await pipe.step(*data(8))
    with pytest.raises(NotRegistered, match="drives no pipeline named 'lm'"):
        await cluster.pipeline(None, name="lm")


async def test_deadlines_and_errors_of_stages_come_through_the_driver(cluster: Any, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    async with await cluster.pipeline(list(fatal(STAGES, trigger)), microbatches=4, **TRAINING) as pipe:
        arm(trigger, 1, "steady", "3")
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"stage 1 on stage-1 has been computing"):
            await pipe.step(*data(18), timeout=1)
        assert time.monotonic() - began < 3
        arm(trigger, 2, "drain", "error")
        with pytest.raises(RemoteError, match="a fault of the stage"):
            await pipe.step(*data(18), timeout=30)
        await pipe.step(*data(18))
        assert (await pipe.statistics())["steps"] == 1
        with pytest.raises(psf.ArgumentError, match="y has 7 rows, x has 8"):
            await pipe.step(data(8)[0], data(7)[1])


async def test_a_step_that_a_client_cancels_happened_everywhere_or_nowhere(cluster: Any) -> None:
    async with await cluster.pipeline(chain(3), **TRAINING) as pipe:
        oracle = Oracle(modules(chain(3)), F.cross_entropy, sgd)
        oracle.whole.load_state_dict(await pipe.state_dict())
        done = 0
        for number in range(8):
            step = asyncio.ensure_future(pipe.step(*data(18, number)))
            await asyncio.sleep(0.004 * number)
            step.cancel()
            await asyncio.wait([step])
            await pipe.state_dict()  # its turn is after that of the step
            steps = (await pipe.statistics())["steps"]
            assert steps - done in (0, 1)
            if steps > done:
                oracle.step(*data(18, number))
            done = steps
        await pipe.step(*data(18), timeout=0)
        oracle.step(*data(18))
        assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_a_client_that_dies_frees_the_stages(local: Any, cluster: Any, tmp_path: Path) -> None:
    for driver in DRIVERS:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.support.pipeline_client", local.address, driver, str(tmp_path / "trigger")),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"stepped\n"
            assert await cluster.rpc_async("stage-0", Fatal.living) == 1
        finally:
            process.kill()
            await process.wait()
        await freed(cluster)


async def test_a_driver_that_dies_is_named_and_the_stages_are_freed(
    local: Any, cluster: Any, tmp_path: Path
) -> None:
    pipe = await cluster.pipeline(list(fatal(STAGES, tmp_path / "trigger")), **TRAINING)
    await pipe.step(*data(18))
    arm(tmp_path / "trigger", 1, "forward", "3")
    step = asyncio.ensure_future(pipe.step(*data(18)))
    async with asyncio.timeout(10):
        while (tmp_path / "trigger").exists():  # noqa: ASYNC110 - elsewhere
            await asyncio.sleep(0.01)
    local.processes["pipeline-0"].kill()
    began = time.monotonic()
    with pytest.raises(PeerLost, match="pipeline-0, which drove this pipeline, is lost") as raised:
        await step
    assert raised.value.peer == "pipeline-0" and time.monotonic() - began < 10
    await freed(cluster)
    with pytest.raises(PeerLost, match="pipeline-0"):
        await pipe.infer(data(3)[0])
    await pipe.close()
    await local.restart("pipeline-0")
    async with await cluster.pipeline(chain(2), driver="pipeline-0", **TRAINING) as pipe:
        await pipe.step(*data(8))
