"""A pipe on real services whose stages can be killed in a phase of a step, and its twin in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn
from tests.support.pipeline_faults import fatal
from tests.support.pipeline_oracle import adam

STAGES = 3


class Bench:
    """A local cluster, this program in it, and the file that says what happens."""

    def __init__(self, local: Any, cluster: Any, trigger: Path) -> None:
        self.local, self.cluster, self.trigger = local, cluster, trigger

    async def open(self, **options: Any) -> Any:
        """A pipe whose stages do what the file says."""
        given = {"loss": F.cross_entropy, "optimizer": adam(), "microbatches": 4} | options
        return await self.cluster.pipeline(list(fatal(STAGES, self.trigger)), **given)

    def twin(self, state: dict[str, np.ndarray]) -> tuple[nn.Module, Any]:
        """The same model in one process, and its optimizer."""
        model = nn.Sequential(*(kind(*args) for kind, args in fatal(STAGES, self.trigger)))
        model.load_state_dict(state)
        return model, adam(model.parameters())

    async def whole(self, services: int) -> None:
        """All services run; those that have died are started again."""
        for number in range(services):
            process = self.local.processes[f"stage-{number}"]
            if not process.alive:
                await self.local.restart(f"stage-{number}")
        async with asyncio.timeout(30):
            while len(self.cluster.members("pipeline-stage")) < services:  # noqa: ASYNC110 - a view
                await asyncio.sleep(0.02)


def step(model: nn.Module, own: Any, x: np.ndarray, y: np.ndarray, update: bool = True) -> float:
    """A step of the twin; its loss."""
    loss = F.cross_entropy(model(psf.tensor(x)), y)
    loss.backward()
    if update:
        own.step()
        own.zero_grad()
    return float(loss.data)


def check(state: dict[str, np.ndarray], model: nn.Module) -> None:
    """A pipe has the parameters of the twin."""
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-12, err_msg=name)
