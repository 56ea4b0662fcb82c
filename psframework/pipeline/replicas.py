"""The replicas of one rank: each runs some of the micro-batches, and their gradients are summed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from psframework import backend
from psframework.backend import Array, DType
from psframework.collective.group import ProcessGroup
from psframework.ddp.sparse import average_sparse, sparse_names
from psframework.nn.parameter import Parameter
from psframework.pipeline.finalizers import closed_with
from psframework.pipeline.learning import dense
from psframework.pipeline.plan import PipePlan
from psframework.pipeline.stage import LocalStage
from psframework.rpc.compute import compute


class Groups(Protocol):
    """As much of a cluster as makes process groups."""

    async def process_group(
        self, name: str, world_size: int, *, rank: int, deterministic: bool, timeout: float
    ) -> ProcessGroup:
        """Makes a group of as many members, or joins it."""
        ...


class Replicas:
    """One replica among those of its rank.

    Args:
        cluster: makes groups.
        seat: the rank, and the number of this replica.
    """

    def __init__(self, cluster: Groups, seat: tuple[int, int]) -> None:
        self._cluster = cluster
        self._rank, self._replica = seat
        self._group: ProcessGroup | None = None
        self._ends: weakref.finalize[Any, Any] | None = None

    async def reduce(self, plan: PipePlan, run: int, stages: Mapping[int, LocalStage]) -> None:
        """Sums the gradients of all replicas, and gives all of them the buffers of the first.

        A parameter has no gradient afterwards if it had none on any replica.

        Args:
            plan: of the pipe.
            run: number of the run, in which all replicas take part.
            stages: of the rank.
        """
        count = len(plan.services[self._rank])
        if count == 1:
            return
        if self._group is None:
            name = f"pipeline.{plan.pipe}.{self._rank}.{run}"
            self._group = await self._cluster.process_group(
                name, count, rank=self._replica, deterministic=True, timeout=0
            )
            # Else that of a pipe whose driver is gone would stay.
            self._ends = closed_with(self, self._group)
        group = self._group
        parameters = [each for stage in stages.values() for each in stage.learning.parameters.values()]
        tables = [each for stage in stages.values() for each in _tables(stage)]
        rest = [each for each in parameters if each not in set(tables)]
        for some in _by_dtype(rest).values():
            flat = await compute(_packed, some)
            await group.all_reduce(flat, timeout=0)
            await compute(_unpack, flat, some)
        if tables:
            gradients = [table.grad for table in tables]
            sums = await average_sparse(gradients, tables, group, scale=count, wide=True)
            for table, total in zip(tables, sums):
                table.grad = total
        for stage in stages.values():
            for buffer in stage.module.buffers():
                await group.broadcast(buffer, 0, timeout=0)

    async def close(self) -> None:
        """Leaves the group: the next run makes another, if all replicas have left this one."""
        group, self._group = self._group, None
        if group is not None and self._ends is not None:
            self._ends.detach()
            await group.close()


def _tables(stage: LocalStage) -> list[Parameter]:
    """Parameters whose gradients are rows, and stay so: their optimizer leaves the other rows alone."""
    sparse = {stage.module.get_parameter(name) for name in sparse_names(stage.module)}
    return [each for each in stage.learning.parameters.values() if each in sparse]


def _by_dtype(parameters: Iterable[Parameter]) -> dict[DType, list[Parameter]]:
    """Parameters by the dtype of their gradients."""
    found: dict[DType, list[Parameter]] = {}
    for parameter in parameters:
        dtype = np.dtype(np.float32) if backend.is_narrow(parameter.dtype) else parameter.dtype
        found.setdefault(dtype, []).append(parameter)
    return found


def _packed(parameters: list[Parameter]) -> Array:
    """All gradients in one array, zeros where there is none; at the end, how many replicas have each."""
    like: Any = parameters[0].data
    xp = backend.xp(like)
    dtype = next(iter(_by_dtype(parameters)))
    flat = xp.zeros(sum(each.data.size for each in parameters) + len(parameters), dtype)
    start = 0
    for number, parameter in enumerate(parameters):
        size = parameter.data.size
        if parameter.grad is not None:
            flat[start : start + size] = dense(parameter.grad).reshape(-1)
            flat[len(flat) - len(parameters) + number] = 1
        start += size
    return flat  # type: ignore[no-any-return]


def _unpack(flat: Array, parameters: list[Parameter]) -> None:
    """The sums as the gradients."""
    start, present = 0, flat[len(flat) - len(parameters) :]
    for number, parameter in enumerate(parameters):
        stop = start + parameter.data.size
        parameter.grad = flat[start:stop].reshape(parameter.shape) if present[number] else None
        start = stop
