"""The allreduce service in a cluster: a member that others reduce through, and that learns who is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

import psframework as psf
from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.process import child_environment
from psframework.collective.algorithms import combine
from psframework.collective.central_messages import ROLE
from psframework.collective.ops import ReduceOp
from psframework.errors import ArgumentError, DeadlineExceeded, PeerLost
from psframework.testing.cluster import program

MEMBER = """
import asyncio, sys
import psframework as psf

async def main():
    async with psf.connect(sys.argv[1], name="mortal") as cluster:
        group = await cluster.process_group(sys.argv[2], 2, rank=1, algorithm="central")
        await group.barrier()
        print("joined", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(allreduce=1) as cluster:
        yield cluster


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members do not listen, as where the coordinator is on another machine: they can't reach each other."""
    monkeypatch.setattr("psframework.cluster.connect.is_loopback", lambda _: False)


async def groups(
    stack: AsyncExitStack, local: LocalCluster, name: str, size: int, algorithm: str | None = None
) -> list[psf.ProcessGroup]:
    """The same group, as each of its members in this process has it."""
    clusters = [
        await stack.enter_async_context(connect(local.address, name=f"{name}-{rank}")) for rank in range(size)
    ]
    opening = [
        each.process_group(name, size, rank=rank, timeout=30, algorithm=algorithm)
        for rank, each in enumerate(clusters)
    ]
    return await asyncio.gather(*opening)


async def test_the_service_is_a_member_that_status_shows(local: LocalCluster) -> None:
    assert list(local.processes) == ["coordinator", "allreduce-0"]
    command = [
        sys.executable,
        "-m",
        "psframework.cli.app",
        "status",
        "--coordinator",
        local.address,
        "--json",
    ]
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=child_environment({"PSF_TOKEN": local.token})
    )
    out, _ = await child.communicate()
    members = {member["name"]: member for member in json.loads(out)["members"]}
    assert members["allreduce-0"]["role"] == ROLE
    assert members["allreduce-0"]["addresses"] == [local.processes["allreduce-0"].address]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ArgumentError, match="allreduce=-1"):
        local_cluster(allreduce=-1)


@pytest.mark.usefixtures("apart")
async def test_members_that_cannot_reach_each_other_are_served(local: LocalCluster) -> None:
    arrays = list(np.random.default_rng(0).standard_normal((3, 200_000)).astype(np.float32))
    mean = combine(ReduceOp.AVG, [array.copy() for array in arrays], 3).tobytes()
    async with AsyncExitStack() as stack:
        ranks = await groups(stack, local, "apart", 3)
        assert {each.transport for each in ranks} == {"central"}
        reducing = [each.all_reduce(array, psf.ReduceOp.AVG) for each, array in zip(ranks, arrays)]
        await asyncio.gather(*reducing)
        assert [array.tobytes() for array in arrays] == [mean] * 3
        got = await asyncio.gather(*(each.all_gather(np.array([each.rank])) for each in ranks))
        assert [array.ravel().tolist() for array in got] == [[0, 1, 2]] * 3
        with pytest.raises(DeadlineExceeded, match=r"rank 1 \(apart-1\)"):
            await ranks[0].barrier(timeout=0.5)


async def test_bits_are_those_of_the_ring(local: LocalCluster) -> None:
    arrays = list(np.random.default_rng(1).standard_normal((2, 100_000)).astype(np.float32))
    results = []
    for algorithm in ("ring", "central"):
        async with AsyncExitStack() as stack:
            ranks = await groups(stack, local, algorithm, 2, algorithm)
            assert {each.transport for each in ranks} == {algorithm}
            copies = [array.copy() for array in arrays]
            reducing = [each.all_reduce(copy, psf.ReduceOp.AVG) for each, copy in zip(ranks, copies)]
            await asyncio.gather(*reducing)
            results += [copy.tobytes() for copy in copies]
    assert len(set(results)) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_rank_that_dies_is_lost_within_the_lease(local: LocalCluster, tmp_path, number) -> None:
    name = f"dying-{number.name}"
    async with program(tmp_path, "mortal_member", MEMBER, [local.address, name]) as other:
        async with connect(local.address, name=f"survivor-{number.name}") as cluster:
            group = await cluster.process_group(name, 2, rank=0, algorithm="central", timeout=30)
            await group.barrier()
            await other.line("joined")
            waiting = asyncio.ensure_future(group.all_reduce(np.ones(10)))
            await asyncio.sleep(0.1)
            other.process.send_signal(number)
            began = time.monotonic()
            with pytest.raises(PeerLost, match=r"rank 1 \(mortal\)") as caught:
                await waiting
            assert time.monotonic() - began < 6.5, "the lease is 5 s"
            assert caught.value.rank == 1
            other.process.send_signal(signal.SIGKILL)


async def test_a_dead_service_is_named(local: LocalCluster) -> None:
    async with AsyncExitStack() as stack:
        ranks = await groups(stack, local, "served", 2, "central")
        waiting = asyncio.ensure_future(ranks[0].barrier())
        await asyncio.sleep(0.1)
        local.processes["allreduce-0"].kill()
        with pytest.raises(PeerLost, match="allreduce-0"):
            await waiting
        await local.restart("allreduce-0")
