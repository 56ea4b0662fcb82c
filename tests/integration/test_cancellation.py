"""Calls cancelled at each of their awaits: nothing is lost or counted twice, and nothing is left behind."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from cancelling import cancelled_at

import psframework as psf
from psframework import nn, optim
from psframework.rpc.deadline import Deadline

AWAITS = 400  # more than any call has


class Net(nn.Module):
    """Two tensors: one travels inline, one does not."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(np.zeros((300, 300), np.float32))
        self.small = nn.Parameter(np.zeros(5, np.float32))

    def fill(self, value: float = 1.0) -> None:
        self.wide.grad = np.full((300, 300), value, np.float32)
        self.small.grad = np.full(5, value, np.float32)

    def is_all(self, value: float) -> bool:
        return bool(np.all(self.wide.data == value) and np.all(self.small.data == value))


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[psf.LocalCluster]:
    async with psf.local_cluster(parameter_servers=2) as cluster:
        yield cluster


async def timed_out(seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
    """Gives a call this long."""
    try:
        async with asyncio.timeout(seconds):
            await call()
    except TimeoutError:
        pass


def moments(rng: random.Random) -> list[float]:
    """Times at which to give up, most of them early."""
    return [rng.uniform(0, 0.004) for _ in range(20)] + [rng.uniform(0, 0.03) for _ in range(10)]


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Afterwards there are no more tasks and heartbeats than before, within a moment."""
    tasks, threads = asyncio.all_tasks(), heartbeats()
    yield
    left: set[object] = set()
    try:
        async with asyncio.timeout(5):
            while left := {*(asyncio.all_tasks() - tasks), *(heartbeats() - threads)}:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"left: {left}") from None


def heartbeats() -> set[threading.Thread]:
    """The threads that a membership owns; others belong to pools."""
    return {thread for thread in threading.enumerate() if thread.name == "psf-heartbeat"}


async def test_connect(local: psf.LocalCluster) -> None:
    async with psf.connect(local.address, name="onlooker") as onlooker:

        async def connect() -> None:
            async with psf.connect(local.address, name="again", timeout=5):
                pass

        async def check() -> None:
            await connect()  # the name is free at once
            await onlooker.membership.wait_for(lambda view: view.find("again") is None, Deadline.after(5))

        async with nothing_left():
            number = 1
            while await cancelled_at(number, connect):
                await check()
                number += 1
                assert number < AWAITS
            assert number > 3
            for moment in moments(random.Random(1)):
                await timed_out(moment, connect)
            await check()


async def test_opening_a_model(local: psf.LocalCluster) -> None:
    async with psf.connect(local.address) as first, psf.connect(local.address) as second:

        async def opened(cluster: psf.Cluster, name: str) -> tuple[Net, psf.ParameterServer]:
            model = Net()
            return model, await cluster.parameter_server(model, name, optim.SGD(lr=1.0), psf.BSP())

        for cluster in (first, second):  # connections to the shards stay
            await (await opened(cluster, "before"))[1].close()
        async with nothing_left():
            number, more = 1, True
            while more:
                name = f"net-{number}"
                more = await cancelled_at(number, lambda name=name: opened(first, name))
                # Whoever gave up is not waited for.
                model, ps = await opened(second, name)
                if more:
                    model.fill()
                    await ps.push_pull(timeout=5)
                    assert model.is_all(-1)
                await ps.close()
                number += 1
                assert number < AWAITS
            assert number > 3


@pytest.mark.parametrize("lanes", ["inline,striped,shm", "inline,striped"])
@pytest.mark.parametrize("policy", [psf.ASP(), psf.BSP()], ids=["asp", "bsp"])
async def test_push_pull_and_push_and_pull(
    local: psf.LocalCluster, monkeypatch: pytest.MonkeyPatch, policy: Any, lanes: str
) -> None:
    """Gradients that were taken count once, whatever became of the call that took them."""
    monkeypatch.setenv("PSF_LANES", lanes)
    rng = random.Random(2)
    async with psf.connect(local.address) as cluster:
        model, taken = Net(), 0
        ps = await cluster.parameter_server(model, f"pp-{lanes}-{policy.name}", optim.SGD(lr=1.0), policy)
        async with nothing_left():
            for call in (ps.push_pull, ps.push, ps.pull):
                number, more = 1, True
                while more:
                    model.fill()
                    more = await cancelled_at(number, call)
                    taken += model.small.grad is None
                    number += 1
                    assert number < AWAITS
                for moment in moments(rng):
                    model.fill()
                    await timed_out(moment, call)
                    taken += model.small.grad is None
                await ps.pull(timeout=10)
                assert model.is_all(-taken), (call, taken, model.small.data)
        assert taken > 3  # how many get through before they are given up is the machine's business


async def test_two_trainers_in_step(local: psf.LocalCluster) -> None:
    """One of two gives up again and again; the other one is not disturbed, and each step is their mean."""
    async with psf.connect(local.address) as first, psf.connect(local.address) as second:
        models, handles = [Net(), Net()], []
        opening = [
            cluster.parameter_server(model, "two", optim.SGD(lr=1.0), psf.BSP(trainers=2))
            for cluster, model in zip((first, second), models)
        ]
        handles = await asyncio.gather(*opening)
        async with nothing_left():
            number, more, steps = 1, True, 0
            while more:
                models[0].fill(4.0)
                models[1].fill(2.0)
                steady = asyncio.create_task(handles[1].push_pull(timeout=10))
                more = await cancelled_at(number, handles[0].push_pull)
                steps += 1
                if models[0].small.grad is not None:  # not taken: once more
                    await handles[0].push_pull(timeout=10)
                await handles[0].pull(timeout=10)
                await steady
                assert models[0].is_all(-3 * steps)
                assert models[1].is_all(-3 * steps)
                number += 1
                assert number < AWAITS
            assert number > 3


async def test_barrier(local: psf.LocalCluster) -> None:
    async with psf.connect(local.address) as first, psf.connect(local.address) as second:
        async with nothing_left():
            for moment in (0.0, 0.001, 0.003, 0.05):
                await timed_out(moment, lambda: first.barrier("b", 2, timeout=10))
                await first.barrier("alone", 1, timeout=10)  # by now the coordinator has heard of it
                # Whoever gave up is not there.
                with pytest.raises(psf.RendezvousTimeout):
                    await second.barrier("b", 2, timeout=0.15)
                await asyncio.gather(first.barrier("b", 2, timeout=10), second.barrier("b", 2, timeout=10))
            number = 1
            while await cancelled_at(number, lambda: first.barrier("alone", 1, timeout=10)):
                await first.barrier("alone", 1, timeout=10)
                number += 1
                assert number < AWAITS


async def test_leaving_while_calls_run(local: psf.LocalCluster) -> None:
    """The end of the block ends what still runs in it: typed, and soon."""
    async with nothing_left():
        async with psf.connect(local.address) as cluster:
            model = Net()
            ps = await cluster.parameter_server(model, "leaving", optim.SGD(lr=1.0), psf.BSP(trainers=2))
            model.fill()
            push = asyncio.create_task(ps.push())
            waiting = asyncio.create_task(cluster.barrier("never", 2, timeout=30))
            await push
            pulling = asyncio.create_task(ps.pull(timeout=30))
            await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            for task in (waiting, pulling):
                with pytest.raises(psf.PsfError):
                    await task
