"""Every member serves calls, a trainer too; what runs for others knows its cluster and its caller."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import remote_functions as functions

from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.remoting import Remoting
from psframework.errors import NotRegistered, PeerLost, PermissionDenied
from psframework.rpc.call import PeerInfo
from psframework.rpc.security.allow import AllowList

PEER = PeerInfo("t-0", "trainer", "default", 1)


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(workers=2, imports=["remote_functions"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with connect(local.address, name="me") as cluster:
        yield cluster


async def test_functions_know_where_they_are_in_tasks_and_in_threads(cluster: Cluster) -> None:
    assert await cluster.rpc_async("worker-1", functions.where) == ("async", "worker-1", "me")
    assert await cluster.rpc_async("worker-1", functions.where_in_thread) == ("thread", "worker-1", "me")


async def test_a_process_can_call_itself(cluster: Cluster) -> None:
    assert await cluster.rpc_async("me", functions.where) == ("async", "me", "me")
    assert await cluster.rpc_async("me", functions.where_in_thread) == ("thread", "me", "me")


async def test_a_trainer_is_called_over_the_connection_that_it_opened(cluster: Cluster) -> None:
    asked = cluster.rpc_async("worker-0", functions.ask, ("me", "remote_functions.where"))
    assert await asked == ("async", "me", "worker-0")


async def test_workers_call_each_other(cluster: Cluster) -> None:
    asked = cluster.rpc_async("worker-0", functions.ask, ("worker-1", "remote_functions.where"))
    assert await asked == ("async", "worker-1", "worker-0")


async def test_two_trainers_in_one_process_call_each_other(local: LocalCluster, cluster: Cluster) -> None:
    async with connect(local.address, name="other"):
        asked = cluster.rpc_async("other", functions.ask, ("me", "remote_functions.where"))
        assert await asked == ("async", "me", "other")


async def test_many_members_and_streams(cluster: Cluster) -> None:
    pids = await cluster.rpc_all(["worker-0", "worker-1"], functions.pid)
    assert len(set(pids)) == 2
    assert [n async for n in cluster.rpc_stream("worker-0", functions.numbers, (4,))] == [0, 1, 2, 3]


async def test_values_stay_elsewhere_and_are_passed_on(cluster: Cluster) -> None:
    counter = cluster.remote("worker-1", functions.Counter, (5,))
    assert await counter.rpc_async().add(2) == 7
    assert await cluster.rpc_async("worker-0", functions.count_on, (counter, 3)) == 10
    assert await cluster.rpc_async(counter, functions.where) == ("async", "worker-1", "me")
    mine = cluster.rref([1, 2])
    assert await cluster.rpc_async("worker-0", functions.fetch, (mine,)) == [1, 2]
    assert mine.local_value() == [1, 2]


async def test_who_is_not_there_and_what_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(NotRegistered, match=r"no member 'worker-7'.*worker-0"):
        await cluster.rpc_async("worker-7", functions.add, (1, 2))
    with pytest.raises(NotRegistered, match=r"near it: remote_functions\.add"):
        await cluster.rpc_async("worker-0", "remote_functions.ad", (1, 2))
    with pytest.raises(PermissionDenied, match="has the role 'trainer'"):
        await cluster.rpc_async("worker-0", functions.for_admins)


async def test_a_killed_worker_is_missed_and_called_again_after_its_restart(
    local: LocalCluster, cluster: Cluster
) -> None:
    pending = cluster.rpc_async("worker-1", functions.sleep, (30,))
    before = await cluster.rpc_async("worker-1", functions.pid)
    async with asyncio.timeout(5):  # far less than its lease and the call
        local.processes["worker-1"].kill()
        with pytest.raises(PeerLost) as caught:
            await pending
    assert (caught.value.peer, caught.value.may_have_run) == ("worker-1", True)
    await local.restart("worker-1")
    async with asyncio.timeout(10):
        while True:  # the view that has the new life is on its way
            with contextlib.suppress(PeerLost):
                assert await cluster.rpc_async("worker-1", functions.pid) != before
                break
            await asyncio.sleep(0.02)


async def test_draining_refuses_what_is_new_and_lets_go_on_what_runs() -> None:
    async with AsyncExitStack() as stack:
        remoting = await stack.enter_async_context(Remoting(rules=AllowList(["trainer:remote_functions.*"])))
        executor = remoting.executor
        entry = executor.allow("remote_functions.add", PEER)
        with executor.admit(entry, PEER):
            remoting.drain()
            with pytest.raises(PeerLost, match="ending") as caught, executor.admit(entry, PEER):
                pass
            assert not caught.value.may_have_run
            assert executor.running == 1
        with pytest.raises(PermissionDenied, match="--allow"):
            executor.allow("remote_functions.add", PeerInfo("w", "worker", "", 2))
