"""Pipelines over real stage services equal one process, for every schedule and any cut of the batch."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim
from psframework.backend import dtype_from_name
from psframework.pipeline.schedule import actions, peak_activations
from psframework.pipeline.spec import Stage
from tests.support import pipeline_models as models
from tests.support.pipeline_models import chain, data
from tests.support.pipeline_oracle import Oracle, adam, modules

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Any]:
    imports = ("tests.support.pipeline_models",)
    async with psf.local_cluster(workers=4, parameter_servers=1, imports=imports) as local:
        async with psf.connect(local.address) as cluster:
            yield cluster


def on(services: int) -> list[str]:
    """So many of them."""
    return [f"worker-{number}" for number in range(services)]


def twin(stages: list[Any], state: dict[str, np.ndarray]) -> nn.Sequential:
    """The same model in one process."""
    model = nn.Sequential(*(kind(*args) for kind, args in stages))
    model.load_state_dict(state)
    return model


def difference(state: dict[str, np.ndarray], model: nn.Module) -> float:
    """The largest."""
    own = model.state_dict()
    assert state.keys() == own.keys()
    return max(float(np.abs(state[name] - own[name]).max()) for name in own)


async def assert_equals_one_process(pipe: Any, model: nn.Module, rows: int) -> None:
    """Three steps, and what both answer then."""
    own = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for seed in range(3):
        x, y = data(rows, seed)
        loss = F.cross_entropy(model(psf.tensor(x)), y)
        own.zero_grad()
        loss.backward()
        own.step()
        assert await pipe.step(x, y) == pytest.approx(float(loss.data), abs=1e-12)
    assert difference(await pipe.state_dict(), model) < 1e-12
    assert np.abs(await pipe.infer(x) - model(psf.tensor(x)).data).max() < 1e-12


TRAINING = {"loss": F.cross_entropy, "optimizer": optim.SGD(lr=0.1, momentum=0.9)}


@pytest.mark.parametrize(
    ("schedule", "stages", "rows", "microbatches"),
    [
        ("gpipe", 2, 8, 1),
        ("gpipe", 3, 21, 8),
        ("gpipe", 4, 3, 8),
        ("1f1b", 2, 21, 8),
        ("1f1b", 3, 8, 1),
        ("1f1b", 4, 16, 4),
        ("eager-1f1b", 2, 21, 8),
        ("eager-1f1b", 3, 8, 1),
        ("eager-1f1b", 4, 16, 4),
        ("interleaved", 4, 8, 1),
        ("interleaved", 4, 21, 8),
        ("interleaved", 4, 16, 4),
        ("interleaved", 4, 20, 3),
        ("zb-h1", 2, 16, 4),
        ("zb-h1", 3, 3, 8),
        ("zb-h1", 4, 21, 8),
        ("zb-h1", 4, 8, 1),
    ],
)
async def test_equals_one_process(
    cluster: Any, schedule: str, stages: int, rows: int, microbatches: int
) -> None:
    virtual = 2 if schedule == "interleaved" else 1
    async with await cluster.pipeline(
        chain(stages),
        schedule=schedule,
        microbatches=microbatches,
        virtual_stages=virtual,
        on=on(stages // virtual),
        **TRAINING,
    ) as pipe:
        await assert_equals_one_process(pipe, twin(chain(stages), await pipe.state_dict()), rows)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1"])
async def test_peak_activations_are_those_of_the_schedule(cluster: Any, schedule: str) -> None:
    virtual = 2 if schedule == "interleaved" else 1
    ranks = 4 // virtual
    async with await cluster.pipeline(
        chain(4), schedule=schedule, microbatches=32, virtual_stages=virtual, on=on(ranks), **TRAINING
    ) as pipe:
        await pipe.step(*data(64))
        peaks = pipe.peak_activations
    for stage in range(4):
        plan = actions(schedule, stage % ranks, ranks, 32, virtual)
        assert peaks[stage] == peak_activations([each for each in plan if each.stage == stage])


async def test_a_cut_sequential_keeps_its_names(cluster: Any) -> None:
    def layers() -> nn.Sequential:
        return nn.Sequential(*(kind(*args) for kind, args in chain(5)))

    model = layers()
    async with await cluster.pipeline(model, stages=3, on=on(3), **TRAINING) as pipe:
        assert difference(await pipe.state_dict(), model) == 0
        await assert_equals_one_process(pipe, model, 21)
        other = layers()
        await pipe.load_state_dict(other.state_dict())
        assert difference(await pipe.state_dict(), other) == 0


async def test_errors_of_a_stage_say_where(cluster: Any) -> None:
    x, y = data(8)
    x[:, 0] = [1, 1, 1, 1, 1, -1, 1, 1]
    async with await cluster.pipeline(
        [(models.Doubled, ()), (models.Faulty, ()), (models.Head, ())], microbatches=4, on=on(3), **TRAINING
    ) as pipe:
        with pytest.raises(psf.RemoteError, match="a negative number") as caught:
            await pipe.step(x, y)
        notes = "\n".join(getattr(caught.value, "__notes__", []))
        assert "the forward of stage 1, micro-batch 2" in f"{notes}\n{caught.value.remote_traceback}"


async def assert_equals_oracle(pipe: Any, oracle: Oracle, batches: Any) -> None:
    """Steps with batches of many kinds."""
    oracle.whole.load_state_dict(await pipe.state_dict())
    for x, y in batches:
        assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)
    assert oracle.difference(await pipe.state_dict()) < 1e-12


async def test_replicas(cluster: Any) -> None:
    stages = [Stage(models.Hidden, replicas=2), Stage(models.Hidden), Stage(models.Head)]
    async with await cluster.pipeline(
        stages, loss=F.cross_entropy, optimizer=adam(), microbatches=5, on=on(4)
    ) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, adam, 5)
        await assert_equals_oracle(pipe, oracle, [data(rows, rows) for rows in (21, 3, 16)])


@pytest.mark.parametrize("optimizer", [optim.SGD, adam])
async def test_a_stage_on_a_parameter_server(cluster: Any, optimizer: Any) -> None:
    stages = [
        Stage(models.Hidden),
        Stage(models.Hidden, parameter_server=f"served-{optimizer.__name__}"),
        Stage(models.Head),
    ]

    def made(*parameters: Any) -> Any:
        return optimizer(*parameters, lr=0.05)

    async with await cluster.pipeline(stages, loss=F.cross_entropy, optimizer=made(), on=on(3)) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, made)
        await assert_equals_oracle(pipe, oracle, [data(21, seed) for seed in range(3)])
        reader = models.Hidden()
        async with await cluster.parameter_server(reader, name=f"served-{optimizer.__name__}", reader=True):
            np.testing.assert_array_equal(
                reader.layer.weight.data, (await pipe.state_dict())["1.layer.weight"]
            )


async def test_tied_words(cluster: Any) -> None:
    """Integers in, of another length in each step; the table of words is the last weight too."""
    stages = [(models.Table, ()), (models.Hidden, ()), (models.Scores, ())]
    batches = [
        tuple(np.random.default_rng(seed).integers(0, 20, (9, length)) for seed in (length, length + 1))
        for length in (3, 6, 2)
    ]
    async with await cluster.pipeline(
        stages,
        loss=models.word_loss,
        optimizer=adam(),
        ties=[("0.table.weight", "2.weight")],
        max_norm=100.0,
        on=on(3),
    ) as pipe:
        first, middle, last = modules(stages)
        last.weight = first.table.weight
        await assert_equals_oracle(pipe, Oracle([first, middle, last], models.word_loss, adam), batches)
        state = await pipe.state_dict()
        np.testing.assert_array_equal(state["0.table.weight"], state["2.weight"])


async def test_large_arrays(cluster: Any) -> None:
    """They arrive as views of the sender's memory, which nobody may write to."""
    stages = [
        Stage(models.Table, (400, 500), replicas=2),
        Stage(models.Hidden, (400,)),
        Stage(models.Scores, (400, 500)),
    ]
    rng = np.random.default_rng(0)
    batches = [(rng.integers(0, 500, (64, 16)), rng.integers(0, 500, (64, 16))) for _ in range(2)]
    async with await cluster.pipeline(
        stages,
        loss=models.word_loss,
        optimizer=adam(),
        microbatches=2,
        ties=[("0.table.weight", "2.weight")],
        on=on(4),
    ) as pipe:
        first, middle, last = modules(stages)
        last.weight = first.table.weight
        oracle = Oracle([first, middle, last], models.word_loss, adam, 2)
        await assert_equals_oracle(pipe, oracle, batches)
        await pipe.load_state_dict(await pipe.state_dict())
        x, y = batches[0]
        assert await pipe.step(x, y) == pytest.approx(oracle.step(x, y), abs=1e-12)


async def test_skips_with_recomputation(cluster: Any) -> None:
    stages = [(models.Down, ()), (models.Hidden, ()), (models.Across, ()), (models.Up, ())]
    async with await cluster.pipeline(
        stages, loss=F.cross_entropy, optimizer=adam(), schedule="zb-h1", recompute=True, on=on(4)
    ) as pipe:
        oracle = Oracle(modules(stages), F.cross_entropy, adam)
        await assert_equals_oracle(pipe, oracle, [data(13, seed) for seed in range(2)])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
async def test_precision(cluster: Any, precision: str) -> None:
    stages = [(models.Small, ()), (models.Small, (models.WIDTH, models.CLASSES))]
    async with await cluster.pipeline(
        stages, loss=F.cross_entropy, optimizer=adam(), precision=precision, on=on(2)
    ) as pipe:
        dtype = dtype_from_name(precision)
        oracle = Oracle([part.to(dtype) for part in modules(stages)], F.cross_entropy, adam)
        oracle.whole.load_state_dict(await pipe.state_dict())
        scaler = optim.GradScaler(enabled=precision == "float16")
        for seed in range(2):
            x, y = data(21, seed)
            oracle.gradients(x, y, scaler.get_scale(), dtype)
            await pipe.step(x, y)
            scaler.step(oracle.optimizer)
            scaler.update()
        assert oracle.difference(await pipe.state_dict()) == 0


async def test_lengths_and_dtypes_change_from_step_to_step(cluster: Any) -> None:
    stages = [(models.Hidden, ()), (models.Doubled, ()), (models.Normed, ())]
    rng = np.random.default_rng(3)
    batches = [
        tuple(rng.normal(size=(rows, models.WIDTH)).astype(dtype) for _ in "xy")
        for rows, dtype in [(17, np.float32), (40, np.float64), (19, np.float32)]
    ]
    async with await cluster.pipeline(
        stages, loss=models.square_loss, optimizer=adam(), microbatches=3, on=on(3)
    ) as pipe:
        oracle = Oracle(modules(stages), models.square_loss, adam, 3, pipe._driver._ranks.plan.seed)
        await assert_equals_oracle(pipe, oracle, batches)
