"""Several ranks as tasks of one loop, with as much of a ProcessGroup as the DDP tools use."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np

from psframework.collective.algorithms import combine
from psframework.collective.ops import ReduceOp, check_op
from psframework.errors import CollectiveMismatch

T = TypeVar("T")


class Meeting:
    """One operation: what each rank gave, until all have come."""

    def __init__(self, size: int) -> None:
        self.given: dict[int, tuple[Any, Any]] = {}
        self.size, self.all_here = size, asyncio.Event()

    async def come(self, rank: int, what: Any, value: Any) -> dict[int, Any]:
        """Returns what all ranks gave, once they have; CollectiveMismatch if they do not do the same."""
        self.given[rank] = (what, value)
        if len(self.given) == self.size:
            self.all_here.set()
        async with asyncio.timeout(20):
            await self.all_here.wait()
        if any(other != what for other, _ in self.given.values()):
            raise CollectiveMismatch(str({rank: other for rank, (other, _) in sorted(self.given.items())}))
        return {rank: value for rank, (_, value) in self.given.items()}


class RankGroup:
    """The group as one rank has it.

    Attributes:
        given: bytes of arrays that this rank gave to all_reduce and all_gather.
    """

    def __init__(self, rank: int, size: int, meetings: dict[int, Meeting]) -> None:
        self.rank, self.size, self.given = rank, size, 0
        self._meetings, self._calls = meetings, 0

    def _call(self, what: Any, value: Any, finish: Callable[[list[Any]], Any]) -> asyncio.Task[Any]:
        self._calls += 1
        meeting = self._meetings.setdefault(self._calls, Meeting(self.size))

        async def run() -> Any:
            everything = await meeting.come(self.rank, what, value)
            return finish([everything[rank] for rank in range(self.size)])

        return asyncio.ensure_future(run())

    def all_reduce(self, array: Any, op: ReduceOp = ReduceOp.SUM, timeout: Any = None) -> Awaitable[Any]:
        check_op(op, array.dtype)
        self.given += array.nbytes

        def finish(arrays: list[Any]) -> Any:
            array.reshape(-1)[...] = combine(op, arrays, self.size)
            return array

        return self._call(("all_reduce", op, array.shape, array.dtype), array.reshape(-1).copy(), finish)

    def all_gather(self, array: Any, timeout: Any = None) -> Awaitable[Any]:
        self.given += array.nbytes
        return self._call(("all_gather", array.shape, array.dtype), array.copy(), np.stack)

    def refuse(self, why: str, timeout: Any = None) -> Awaitable[Any]:
        return self._call(("refused", self.rank, why), None, lambda values: None)

    def gather_object(self, value: Any, dst: int, timeout: Any = None) -> Awaitable[Any]:
        def finish(values: list[Any]) -> Any:
            return values if self.rank == dst else None

        return self._call(("gather_object", dst), copy.deepcopy(value), finish)

    def broadcast_object(self, value: Any, src: int, timeout: Any = None) -> Awaitable[Any]:
        def finish(values: list[Any]) -> Any:
            return copy.deepcopy(values[src])

        return self._call(("broadcast_object", src), copy.deepcopy(value), finish)


async def on_ranks(size: int, function: Callable[[RankGroup], Awaitable[T]]) -> list[T]:
    """Runs `function(group)` on each rank; returns their results by rank."""
    meetings: dict[int, Meeting] = {}
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_run(function, RankGroup(rank, size, meetings))) for rank in range(size)]
    return [task.result() for task in running]


async def _run(function: Callable[[RankGroup], Awaitable[T]], group: RankGroup) -> T:
    return await function(group)
