"""The handle of a connection: models open through it and close with it."""

import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.errors import ContextClosed, RendezvousTimeout
from psframework.nn import Linear
from psframework.optim import SGD
from psframework.parameter_server.policy import ASP
from psframework.rpc.deadline import Deadline


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=2) as cluster:
        yield cluster


async def test_a_model_trains_and_closes_with_the_cluster(local: LocalCluster) -> None:
    model = Linear(3, 2)
    before = model.weight.data.copy()
    async with connect(local.address) as cluster:
        ps = await cluster.parameter_server(model, "closing", optimizer=SGD(lr=1.0))
        model.weight.grad, model.bias.grad = np.ones((2, 3), np.float32), np.zeros(2, np.float32)
        await ps.push_pull()
        np.testing.assert_array_equal(model.weight.data, before - 1)
    with pytest.raises(ContextClosed):
        await ps.pull()
    np.testing.assert_array_equal(model.weight.data, before - 1)


async def test_models_of_one_job_are_shared_and_of_another_are_not(local: LocalCluster) -> None:
    async with connect(local.address, job="a") as one, connect(local.address, job="a") as two:
        async with connect(local.address, job="b") as other:
            first, second, third = Linear(2, 2), Linear(2, 2), Linear(2, 2)
            await one.parameter_server(first, optimizer=SGD(lr=1.0), consistency=ASP())
            await two.parameter_server(second, optimizer=SGD(lr=1.0), consistency=ASP())
            await other.parameter_server(third, optimizer=SGD(lr=1.0), consistency=ASP())
            np.testing.assert_array_equal(first.weight.data, second.weight.data)
            assert not np.array_equal(first.weight.data, third.weight.data)


async def test_a_barrier_names_how_many_are_missing(local: LocalCluster) -> None:
    async with connect(local.address, name="early") as early:
        with pytest.raises(RendezvousTimeout, match="early"):
            await early.barrier("start", 3, timeout=0.3)
        async with connect(local.address, name="late") as late:
            await asyncio.gather(early.barrier("start", 2), late.barrier("start", 2))


async def test_shutdown_ends_everything_once(local: LocalCluster) -> None:
    async with connect(local.address, name="leaver") as cluster, connect(local.address) as other:
        await cluster.parameter_server(Linear(2, 2), "ending", optimizer=SGD(lr=1.0))
        await cluster.shutdown()
        await cluster.shutdown()
        await other.membership.wait_for(lambda view: view.find("leaver") is None, Deadline.after(5))
        for call in (
            cluster.barrier("late", 1),
            cluster.parameter_server(Linear(2, 2), optimizer=SGD(lr=1.0)),
        ):
            with pytest.raises(ContextClosed, match="leaver has left"):
                await call
        assert "closed" in repr(cluster)


@pytest.mark.parametrize("graceful", [True, False])
async def test_shutdown_does_not_wait_for_those_that_are_gone(graceful: bool) -> None:
    async with local_cluster(parameter_servers=1) as local, connect(local.address) as cluster:
        await cluster.parameter_server(Linear(2, 2), optimizer=SGD(lr=1.0))
        for process in local.processes.values():
            process.kill()
        began = time.monotonic()
        await cluster.shutdown(graceful=graceful, timeout=2)
        assert time.monotonic() - began < (5 if graceful else 1), "2 s for the model, 1 s for the coordinator"
