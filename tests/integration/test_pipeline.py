"""Pipelines over real stage services equal one process, for every schedule and any cut of the batch."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim
from tests.support.pipeline_models import chain, data

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Any]:
    imports = ("tests.support.pipeline_models",)
    async with psf.local_cluster(workers=4, imports=imports) as local:
        async with psf.connect(local.address) as cluster:
            yield cluster


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


@pytest.mark.parametrize(("rows", "microbatches"), [(8, 1), (16, 4), (21, 8), (3, 8)])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
async def test_equals_one_process(
    cluster: Any, schedule: str, ranks: int, rows: int, microbatches: int
) -> None:
    stages = chain(ranks)
    async with await cluster.pipeline(
        stages,
        loss=F.cross_entropy,
        optimizer=optim.SGD(lr=0.1, momentum=0.9),
        schedule=schedule,
        microbatches=microbatches,
        on=[f"worker-{rank}" for rank in range(ranks)],
    ) as pipe:
        model = twin(stages, await pipe.state_dict())
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
