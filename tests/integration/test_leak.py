"""Thousands of calls and pushes leave nothing behind: memory, descriptors, tasks and threads stay."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import remote_functions

import psframework as psf
from psframework import nn, optim
from psframework.errors import NotRegistered
from psframework.parameter_server.messages import shard_method
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.pool import default_threads

MIB = 1 << 20
IN_FLIGHT = 50
POOLS = 2 + default_threads()  # threads of pools, gRPC's and ours, come and go


@dataclass(frozen=True)
class Footprint:
    """What one process holds: resident bytes, descriptors, threads."""

    resident: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        process = psutil.Process(pid)
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads())


class Watch:
    """Footprints of this process and of a cluster's, and the tasks here."""

    def __init__(self, local: psf.LocalCluster) -> None:
        self._pids = {name: process.pid for name, process in local.processes.items()}
        self._pids["trainer"] = psutil.Process().pid
        self._before = self._look()
        self._tasks = asyncio.all_tasks()
        self._threads = threading.enumerate()

    def _look(self) -> dict[str, Footprint]:
        gc.collect()
        return {name: Footprint.of(pid) for name, pid in self._pids.items()}

    def _left(self) -> list[object]:
        """Tasks, and threads but for gRPC's own, which it replaces now and then."""
        tasks: list[object] = list(asyncio.all_tasks() - self._tasks)
        threads = [each for each in threading.enumerate() if each not in self._threads]
        return tasks + [each for each in threads if "_poll_wrapper" not in each.name]

    async def is_flat(self, growth: int) -> None:
        """Asserts that nothing grew: memory by less than `growth` bytes, all else not at all."""
        end = time.monotonic() + 10
        while grown := self._left() + self._grown(growth):
            assert time.monotonic() < end, grown
            await asyncio.sleep(0.1)  # the other processes learn of a closed connection in a moment

    def _grown(self, growth: int) -> list[object]:
        return [
            (name, self._before[name], now)
            for name, now in self._look().items()
            if now.resident - self._before[name].resident >= growth
            or now.descriptors > self._before[name].descriptors
            or now.threads > self._before[name].threads + POOLS
        ]


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[psf.LocalCluster]:
    async with psf.local_cluster(parameter_servers=1, workers=1, imports=["remote_functions"]) as cluster:
        yield cluster


class Net(nn.Module):
    """A tensor that travels inline, one in stripes or in shared memory."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(np.zeros((512, 512), np.float32))
        self.small = nn.Parameter(np.zeros(3, np.float32))

    def fill(self) -> None:
        self.wide.grad = np.ones((512, 512), np.float32)
        self.small.grad = np.ones(3, np.float32)


async def calls(cluster: psf.Cluster, count: int) -> None:
    """Calls on the call stream, many at once; every tenth one fails."""
    member = cluster.members(role="parameter-server")[0]
    peer = await cluster.agent.connect(
        member.addresses, name=member.name, role=member.role, deadline=Deadline.after(10)
    )

    async def call(number: int) -> None:
        if number % 10:
            request, method, reply = pb.ListTablesRequest(), "ListTables", pb.ListTablesReply
            await peer.call(shard_method(method), request, reply, deadline=Deadline.after(30))
        else:
            with pytest.raises(NotRegistered):
                await peer.call(
                    shard_method("No"), pb.ListTablesRequest(), pb.PushReply, deadline=Deadline.after(30)
                )

    for first in range(0, count, IN_FLIGHT):
        await asyncio.gather(*(call(number) for number in range(first, first + IN_FLIGHT)))


async def pushes(cluster: psf.Cluster, count: int) -> None:
    """Steps of a model, on a connection that offers shared memory, or stripes, as PSF_LANES says."""
    model = Net()
    ps = await cluster.parameter_server(
        model, f"net-{cluster.name}", optim.Adam(lr=1e-3), psf.BSP(), keep=True
    )
    for _ in range(count):
        model.fill()
        await ps.push_pull()
    await ps.close()


async def functions(cluster: psf.Cluster, count: int) -> None:
    """Calls of functions, sync and async, many at once; every tenth one fails."""
    array = np.ones(30)

    async def call(number: int) -> None:
        if number % 10:
            function = remote_functions.add if number % 2 else remote_functions.sleep
            args = (array, number) if number % 2 else (0,)
            await cluster.rpc_async("worker-0", function, args)
        else:
            with pytest.raises(ValueError, match="no"):
                await cluster.rpc_async("worker-0", remote_functions.fail, ("no",))

    for first in range(0, count, IN_FLIGHT):
        await asyncio.gather(*(call(number) for number in range(first, first + IN_FLIGHT)))


async def references(cluster: psf.Cluster, count: int) -> None:
    """Values made on a worker, used, passed on, and dropped; every tenth one can't be made."""

    async def use(number: int) -> None:
        if number % 10:
            counter = cluster.remote("worker-0", remote_functions.Counter, (number,))
            assert await counter.rpc_async().add(1) == number + 1
            if number % 10 == 1:
                mine = cluster.rref([number])
                assert await cluster.rpc_async("worker-0", remote_functions.fetch, (mine,)) == [number]
        else:
            failed = cluster.remote("worker-0", remote_functions.fail, ("no",))
            with pytest.raises(ValueError, match="no"):
                await failed.to_here()

    for first in range(0, count, IN_FLIGHT):
        await asyncio.gather(*(use(number) for number in range(first, first + IN_FLIGHT)))
    async with asyncio.timeout(10):
        while await cluster.rrefs.list_of("worker-0") or cluster.rrefs.list():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def megabytes(cluster: psf.Cluster, count: int) -> None:
    """A megabyte there and back, a few at once; every tenth call fails."""
    array = np.ones(MIB // 8)

    async def call(number: int) -> None:
        if number % 10:
            assert (await cluster.rpc_async("worker-0", remote_functions.add, (array, 1)))[-1] == 2
        else:
            with pytest.raises(TypeError):
                await cluster.rpc_async("worker-0", remote_functions.add, (array, None))

    for first in range(0, count, 4):
        await asyncio.gather(*(call(number) for number in range(first, first + 4)))


async def sessions(local: psf.LocalCluster, count: int) -> None:
    """Members that come, open a model, push once, and go."""
    for _ in range(count):
        async with psf.connect(local.address, name="passing") as cluster:
            await pushes(cluster, 1)


Work = Callable[[psf.Cluster, int], Awaitable[None]]


@pytest.mark.parametrize("lanes", ["inline,striped,shm", "inline,striped"])
@pytest.mark.parametrize(("work", "count"), [(calls, 2000), (pushes, 200)], ids=["calls", "pushes"])
async def test_calls_and_pushes(
    local: psf.LocalCluster, monkeypatch: pytest.MonkeyPatch, work: Work, count: int, lanes: str
) -> None:
    monkeypatch.setenv("PSF_LANES", lanes)
    async with psf.connect(local.address) as cluster:
        await work(cluster, max(100, count // 5))  # buffers and caches fill up
        watch = Watch(local)
        await work(cluster, count)
        await watch.is_flat(24 * MIB if work is pushes else 8 * MIB)  # a few buffers of 1 MiB more or less


async def test_members_that_come_and_go(local: psf.LocalCluster) -> None:
    await sessions(local, 10)
    watch = Watch(local)
    await sessions(local, 30)
    await watch.is_flat(8 * MIB)


LONG = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("work", "count", "lanes"),
    [
        (functions, 10_000, "inline,striped,shm"),
        (references, 1000, "inline,striped,shm"),
        (megabytes, 200, "inline,striped,shm"),
        (megabytes, 200, "inline,striped"),
        pytest.param(functions, 100_000, "inline,striped,shm", marks=LONG),
        pytest.param(references, 10_000, "inline,striped,shm", marks=LONG),
        pytest.param(megabytes, 10_000, "inline,striped,shm", marks=LONG),
        pytest.param(megabytes, 10_000, "inline,striped", marks=LONG),
    ],
)
async def test_functions_and_references(
    local: psf.LocalCluster, monkeypatch: pytest.MonkeyPatch, work: Work, count: int, lanes: str
) -> None:
    monkeypatch.setenv("PSF_LANES", lanes)
    async with psf.connect(local.address) as cluster:
        await work(cluster, max(200, count // 5))
        watch = Watch(local)
        await work(cluster, count)
        await watch.is_flat(24 * MIB if work is megabytes else 8 * MIB)  # a few buffers more or less


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_calls(local: psf.LocalCluster) -> None:
    async with psf.connect(local.address) as cluster:
        await calls(cluster, 5000)
        await pushes(cluster, 500)
        watch = Watch(local)
        await calls(cluster, 100_000)
        await pushes(cluster, 10_000)
        await sessions(local, 300)
        await watch.is_flat(16 * MIB)
