"""Real processes for tests of distributed autograd, and what must be true after each test."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import dist_functions as functions
import numpy as np

import psframework as psf
from psframework.autograd import Tensor
from psframework.cluster.local import LocalCluster


def leaf(*values: float, dtype: Any = "float64") -> Tensor:
    """A tensor of this process that gradients are wanted for."""
    return Tensor(np.array(values, dtype), requires_grad=True)


@dataclass
class Stage:
    """A cluster of workers, and this process as a member of it."""

    local: LocalCluster
    cluster: psf.Cluster
    dead: set[str] = field(default_factory=set)

    @property
    def workers(self) -> list[str]:
        """Those that live."""
        return [name for name in self.local.processes if name.startswith("worker") and name not in self.dead]

    def kill(self, name: str) -> None:
        """Kills a worker; without it the others go on."""
        self.dead.add(name)
        self.local.processes[name].kill()

    async def outside(self, name: str, function: Any) -> Any:
        """Calls a worker outside of any context, wherever this is called."""

        async def call() -> Any:
            return await self.cluster.rpc_async(name, function)

        return await asyncio.create_task(call(), context=contextvars.Context())

    async def clean(self, names: Iterable[str] | None = None, seconds: float = 5.0) -> None:
        """Waits until distributed autograd keeps nothing at workers: no contexts, messages, nodes, arrays."""
        await self.clean_elsewhere(names, seconds)
        assert len(self.cluster.dist.contexts) == 0

    async def clean_elsewhere(self, names: Iterable[str] | None = None, seconds: float = 5.0) -> None:
        """The same at workers only; asks outside of any context."""
        await asyncio.create_task(self._clean(names, seconds), context=contextvars.Context())

    async def _clean(self, names: Iterable[str] | None, seconds: float) -> None:
        names = self.workers if names is None else list(names)
        end = time.monotonic() + seconds
        while any(found := await self.cluster.rpc_all(names, functions.kept)):
            assert time.monotonic() < end, f"kept at {names}: {found}"
            await asyncio.sleep(0.05)

    async def works(self, names: Iterable[str] | None = None) -> None:
        """A new context over all workers gives the right gradients, and leaves nothing behind."""
        names = self.workers if names is None else list(names)
        x = leaf(1.0, 2.0)
        async with self.cluster.dist_autograd() as ctx:
            y = await self.cluster.rpc_async(names[0], functions.forward_to, (names[1:], x))
            await ctx.backward([(y * y).sum()])
            power = 4.0 ** len(names)
            np.testing.assert_array_equal(ctx.gradients()[x], 2.0 * power * np.array([1.0, 2.0]))
        del y, ctx
        await self.clean(names)
