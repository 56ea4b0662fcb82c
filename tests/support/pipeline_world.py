"""Stage services in this process: real hosts and values that are copied as they would be, and no network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import psframework as psf
from psframework.collective.ops import ReduceOp
from psframework.membership.names import check_name
from psframework.membership.view import Member
from psframework.optim.optimizer import Optimizer
from psframework.pipeline.client import Pipeline, open_pipeline
from psframework.pipeline.options import options_of
from psframework.pipeline.placement import ROLE
from psframework.rpc.call import PeerInfo
from psframework.rpc.current import current
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import Caller, Running, enter
from psframework.rpc.registry import find
from psframework.rpc.values.arguments import decode, encode
from psframework.rpc.values.journey import Journey


def travelled(value: Any) -> Any:
    """A value as it arrives elsewhere."""
    journey = Journey()
    message = encode(value, journey)
    return decode(message, [bytes(part) for part in journey.parts], Journey(outgoing=False))


class Service:
    """As much of a cluster as the driver and the hosts need, seen from one member."""

    def __init__(
        self, name: str, services: dict[str, Service], groups: dict[str, Meeting], shelves: dict[str, Any]
    ) -> None:
        self.name = name
        self._services, self._groups = services, groups
        self.shelves = shelves

    def members(self, role: str | None = None) -> tuple[Member, ...]:
        roles = {name: name.rpartition("-")[0] for name in self._services}
        found = {name: ROLE if stem == "stage" else stem for name, stem in roles.items()}
        return tuple(Member(name, each) for name, each in found.items() if role in (None, each))

    def check_caller(self, function: Any) -> None:
        """All may call all."""

    def rpc_async(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> asyncio.Future[Any]:
        args = travelled(args)
        return asyncio.ensure_future(self._services[to].call(find(fn).target, args, travels=True))

    def remote(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> Reference:
        service = self._services[to]
        return Reference(service, asyncio.ensure_future(service.call(find(fn).target, travelled(args))))

    async def call(self, function: Any, args: Any, travels: bool = False) -> Any:
        token = current.set(self)
        enter(Running(Caller(PeerInfo("driver", "trainer", "", 0)), Deadline.NEVER))
        try:
            result = await function(*args)
        finally:
            current.reset(token)
        return travelled(result) if travels else result

    def job_of_names(self) -> str:
        return "default"

    async def process_group(self, name: str, world_size: int, *, rank: int, **options: Any) -> Seat:
        meeting = self._groups.setdefault(check_name(name), Meeting(world_size))
        return Seat(meeting, rank)


class Reference:
    """Of a host."""

    def __init__(self, service: Service, made: asyncio.Future[Any]) -> None:
        self._service, self._made = service, made

    async def confirmed_by_owner(self) -> None:
        await self._made

    def rpc_async(self, timeout: float | None = None) -> Calls:
        return Calls(self._service, self._made)

    def close(self) -> None:
        self._made.cancel()


class Calls:
    """Its methods, called from elsewhere."""

    def __init__(self, service: Service, made: asyncio.Future[Any]) -> None:
        self._service, self._made = service, made

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> asyncio.Future[Any]:
            arrived = travelled(args)

            async def run() -> Any:
                host = await self._made
                return await self._service.call(getattr(host, name), arrived, travels=True)

            return asyncio.ensure_future(run())

        return call


class Meeting:
    """Members of a process group; the n-th operation of each meets the n-th of the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._begun = [0] * size
        self._arrays: dict[int, dict[int, Any]] = {}
        self._done: dict[int, asyncio.Future[None]] = {}

    async def meet(self, rank: int, array: Any, combine: Any) -> None:
        number = self._begun[rank]
        self._begun[rank] += 1
        arrays = self._arrays.setdefault(number, {})
        done = self._done.setdefault(number, asyncio.get_running_loop().create_future())
        arrays[rank] = array
        if len(arrays) == self.size:
            del self._arrays[number], self._done[number]
            combine([arrays[each] for each in range(self.size)])
            done.set_result(None)
        await done


class Seat:
    """A place in a process group."""

    error = None

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._meeting.size

    async def all_reduce(self, array: Any, op: ReduceOp = ReduceOp.SUM, timeout: float | None = None) -> None:
        def combine(arrays: list[Any]) -> None:
            total = sum(arrays[1:], arrays[0].copy())
            for each in arrays:
                each[...] = total if op is ReduceOp.SUM else total / len(arrays)

        await self._meeting.meet(self._rank, array, combine)

    async def all_gather(self, array: Any) -> Any:
        found = np.zeros((self.size, *array.shape), array.dtype)
        found[self._rank] = array
        await self.all_reduce(found)
        return found

    async def broadcast(self, array: Any, src: int, timeout: float | None = None) -> None:
        def combine(arrays: list[Any]) -> None:
            for each in arrays:
                each[...] = arrays[src]

        await self._meeting.meet(self._rank, array, combine)

    async def close(self) -> None:
        pass


class Shelf:
    """A model on a parameter server."""

    def __init__(self, shelves: dict[str, Any], model: Any, name: str, optimizer: Any) -> None:
        self._parameters = list(model.parameters())
        if name not in shelves:
            kept = [psf.tensor(each.data, requires_grad=True) for each in self._parameters]
            shelves[name] = [kept, Optimizer(kept, optimizer.rule), 0]
        self._kept = shelves[name]
        self._take()

    slot = 0

    @property
    def step(self) -> int:
        return self._kept[2]  # type: ignore[no-any-return]

    async def pull(self, timeout: float | None = None) -> None:
        self._take()

    async def push_pull(self, timeout: float | None = None) -> None:
        kept, optimizer, _ = self._kept
        for own, there in zip(self._parameters, kept):
            there.grad, own.grad = own.grad, None
        optimizer.step()
        self._kept[2] += 1
        self._take()

    async def close(self) -> None:
        pass

    def _take(self) -> None:
        for own, there in zip(self._parameters, self._kept[0]):
            own.data[...] = there.data


def driver_service(services: int, drivers: int = 0) -> Service:
    """A client's view of so many stage services and services that drive."""
    found: dict[str, Service] = {}
    groups: dict[str, Meeting] = {}
    shelves: dict[str, Any] = {}
    for name in [f"stage-{i}" for i in range(services)] + [f"pipeline-{i}" for i in range(drivers)]:
        found[name] = Service(name, found, groups, shelves)
    return Service("driver", found, groups, shelves)


async def shelf(service: Any, model: Any, *, name: str, job: str, optimizer: Any, **options: Any) -> Shelf:
    """What opens a model on a parameter server."""
    return Shelf(service.shelves, model, f"{job}/{name}", optimizer)


async def nobody(*_: Any) -> dict[int, str]:
    """Who trains a model that nobody trains."""
    return {}


@contextmanager
def shelves() -> Iterator[None]:
    """Parameter servers are in this process too."""
    served = "psframework.pipeline.served"
    with patch(f"{served}.open_parameter_server", shelf), patch(f"{served}.trainers_of", nobody):
        yield


@asynccontextmanager
async def pipeline(
    model: Any, stages: int | None = None, *, drivers: int = 0, **options: Any
) -> AsyncIterator[Pipeline]:
    """A pipeline on services in this process."""
    psf.manual_seed(0)
    cluster: Any = driver_service(8, drivers)
    with shelves():
        pipe = await open_pipeline(cluster, model, stages, options_of(options), 30.0)
        async with pipe:
            yield pipe
