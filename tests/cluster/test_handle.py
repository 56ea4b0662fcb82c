"""The handle of a connection: models open through it and close with it."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
import remote_functions as functions

from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, PeerLost, RendezvousTimeout
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


# Shutdown with calls under way


@pytest.fixture(scope="module")
async def workers() -> AsyncIterator[LocalCluster]:
    async with local_cluster(workers=3, imports=["remote_functions"]) as cluster:
        yield cluster


@pytest.fixture
async def cluster(workers: LocalCluster) -> AsyncIterator[Cluster]:
    async with connect(workers.address) as cluster:
        await cluster.rpc_all([f"worker-{n}" for n in range(3)], functions.pid)
        yield cluster


async def test_a_graceful_one_waits_for_the_calls_that_it_made(cluster: Cluster) -> None:
    calls = [cluster.rpc_async(f"worker-{n % 3}", functions.sleep, (0.2,)) for n in range(100)]
    await cluster.shutdown()
    assert {call.result() for call in calls} == {"slept"}
    with pytest.raises(ContextClosed, match="has left"):
        cluster.rpc_async("worker-0", functions.pid)


async def test_and_for_those_that_it_serves(workers: LocalCluster) -> None:
    async with connect(workers.address) as asking, connect(workers.address, name="asked") as asked:
        on_the_way = asking.rpc_async("worker-0", functions.ask, ("worker-1", "remote_functions.pid"))
        await asked.rpc_async("worker-0", functions.pid)  # so that it can be called
        served = asking.rpc_async("worker-0", functions.ask, ("asked", "remote_functions.sleep", 0.3))
        await on_the_way
        while not any(peer.statistics()["served"] for peer in asked.agent.peers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asked.shutdown()
        assert await served == "slept"


async def test_what_it_serves_meanwhile_may_go_on_calling(workers: LocalCluster) -> None:
    async with connect(workers.address) as asking, connect(workers.address, name="asked-often") as asked:
        served = asking.rpc_async("asked-often", functions.ask_often, ("worker-0", 10))
        await asked.rpc_async("worker-0", functions.pid)
        while not any(peer.statistics()["served"] for peer in asked.agent.peers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        ending = asyncio.create_task(asked.shutdown())
        await asyncio.sleep(0)
        with pytest.raises(ContextClosed):  # others may not
            asked.rpc_async("worker-0", functions.pid)
        assert await served == 10
        await ending


async def test_calls_are_made_on_the_loop(cluster: Cluster) -> None:
    with pytest.raises(ArgumentError, match="async def"):
        await cluster.rpc_async("worker-0", functions.ask_from_a_thread)
    with pytest.raises(ArgumentError, match="run_coroutine_threadsafe"):
        await asyncio.to_thread(cluster.rpc_async, "worker-0", functions.pid)


async def test_every_pending_call_ends_when_nobody_waits(cluster: Cluster) -> None:
    calls = [cluster.rpc_async(f"worker-{n % 3}", functions.sleep, (30,)) for n in range(100)]
    began = time.monotonic()
    await cluster.shutdown(graceful=False)
    assert time.monotonic() - began < 2
    for call in calls:
        with pytest.raises(PeerLost, match="closed here"):
            await call


async def test_members_that_do_not_answer_in_time_are_named(workers: LocalCluster, cluster: Cluster) -> None:
    silent = workers.processes["worker-1"]
    silent.send_signal(signal.SIGSTOP)
    try:
        call = cluster.rpc_async("worker-1", functions.pid)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"has left, .* after 0\.4 s: 1 call\(s\) to worker-1"):
            await cluster.shutdown(timeout=0.4)
        assert time.monotonic() - began < 3
        with pytest.raises(PeerLost, match="worker-1"):
            await call
    finally:
        silent.send_signal(signal.SIGCONT)


async def test_a_graceful_one_gives_its_references_back(workers: LocalCluster, cluster: Cluster) -> None:
    counter = cluster.remote("worker-0", functions.Counter)
    assert await counter.rpc_async().add(1) == 1
    await cluster.shutdown()
    with pytest.raises(ContextClosed):
        counter.rpc_async().add(1)
    async with connect(workers.address) as other:
        assert await other.rrefs.list_of("worker-0") == []


async def test_owners_that_do_not_take_a_reference_back_are_named(
    workers: LocalCluster, cluster: Cluster
) -> None:
    counter = cluster.remote("worker-1", functions.Counter)
    await counter.confirmed_by_owner()
    silent = workers.processes["worker-1"]
    silent.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded, match="worker-1 did not confirm that 1 references"):
            await cluster.shutdown(timeout=0.4)
    finally:
        silent.send_signal(signal.SIGCONT)


async def test_nobody_waits_for_a_member_that_was_killed(workers: LocalCluster, cluster: Cluster) -> None:
    calls = [cluster.rpc_async(f"worker-{n}", functions.sleep, (0.3,)) for n in range(3)]
    workers.processes["worker-2"].kill()
    began = time.monotonic()
    await cluster.shutdown(timeout=5)
    assert time.monotonic() - began < 4
    assert [call.result() for call in calls[:2]] == ["slept"] * 2
    with pytest.raises(PeerLost, match="worker-2"):
        await calls[2]
    await workers.restart("worker-2")


async def test_leaving_the_block_waits_but_only_warns(
    workers: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(workers.address, timeout=0.5) as cluster:
        quick = cluster.rpc_async("worker-0", functions.sleep, (0.2,))
        slow = cluster.rpc_async("worker-0", functions.sleep, (30,))
    assert quick.result() == "slept"
    assert isinstance(slow.exception(), PeerLost)
    assert "not done after 0.5 s: 1 call(s) to worker-0" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


async def test_leaving_by_an_error_waits_for_no_call(workers: LocalCluster) -> None:
    async def fail() -> None:
        async with connect(workers.address) as cluster:
            cluster.rpc_async("worker-0", functions.sleep, (30,))
            raise ZeroDivisionError

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert time.monotonic() - began < 3


async def test_a_second_end_waits_for_the_first() -> None:
    async with local_cluster(workers=1, imports=["remote_functions"]) as local:
        async with connect(local.address) as cluster:
            call = cluster.rpc_async("worker-0", functions.sleep, (1.0,))
            await cluster.rpc_async("worker-0", functions.pid)
            ending = asyncio.create_task(cluster.shutdown())
            await asyncio.sleep(0)
        assert await call is not None  # leaving the block did not cut it short
        await ending
        async with connect(local.address) as cluster:
            endless = cluster.rpc_async("worker-0", functions.sleep, (60.0,))
            ending = asyncio.create_task(cluster.shutdown())
            await asyncio.sleep(0)
            began = time.monotonic()
            await cluster.shutdown(graceful=False)  # unless it is told not to wait
            assert time.monotonic() - began < 10
            with pytest.raises(PeerLost):
                await endless
            with pytest.raises(DeadlineExceeded):
                await ending


async def test_no_function_ends_the_member_that_it_runs_in() -> None:
    async with (
        local_cluster(workers=1, imports=["remote_functions"]) as local,
        connect(local.address) as cluster,
    ):
        with pytest.raises(ArgumentError, match="in a remote function"):
            await cluster.rpc_async("worker-0", functions.end_the_member)
        assert await cluster.rpc_async("worker-0", functions.add, (1, 2)) == 3
