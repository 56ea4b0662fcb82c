"""Faults of remote calls and references, on real processes, through the SDK.

Every row of CASES "RPC, RRef", and where it is tested:

- pytorch#33803, #39411, timeouts of remote and to_here: test_timeouts_of_creations_and_fetches
- pytorch#70278, #33208, shutdown: cluster/test_handle.py, with a member that was killed, and calls in flight
- pytorch#136726, exit without shutdown: test_an_exit_without_shutdown
- pytorch#50522, #34359, #61920, tensorflow#58628, memory: test_leak.py, test_functions_and_references
- pytorch#27928, #31325, an RRef in a module's global at shutdown: rref/test_handle.py
- pytorch#27096, an RRef in a cycle: rref/test_handle.py, test_cycles
- pytorch#35766, a view ships its own elements: test_a_view_costs_its_own_bytes
- pytorch#52854, #91030, #70605, over 2 GiB: test_more_than_two_gibibytes (soak)
- pytorch#45044, #87224, exceptions with two arguments: test_exceptions_whatever_their_constructors_take
- pytorch#85607, #47461, many workers, started at once: test_thirty_two_workers (soak), test_many.py
- pytorch#53202, duplicate names: cluster/test_connect.py, test_the_same_name_twice
- pytorch#24036, #26313, nested calls: rpc/functions/test_remote_client.py, test_nesting_to_depth_64...
- pytorch#67626, slow constructors: rref/test_handle.py, test_a_slow_constructor_blocks_nobody
- pytorch#45089, a blocked main thread: test_a_loop_that_is_held_keeps_its_lease
- pytorch#41614, #39340, start and stop: test_twenty_times_in_one_process
- monarch#3435, a call that blocks for ever: test_kill_9_of_a_callee
- pytorch#38513, #27643, distributed autograd: test_dist_autograd_faults.py
"""

import asyncio
import gc
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import fault_functions as faults
import numpy as np
import own_group
import pytest
import remote_functions as functions
from cancelling import cancelled_at

import psframework as psf
from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.cluster.process import ServiceProcess
from psframework.errors import DeadlineExceeded, PeerLost, RemoteError
from psframework.rpc.security.credentials import write_token
from psframework.testing.cluster import program
from psframework.testing.faults import FaultyLink

MODULES = ("remote_functions", "fault_functions")
LEASE = 3.0
SECONDS = 20.0


def started(workers: int, *modules: str) -> LocalCluster:
    """A cluster of workers with a short lease."""
    flags = ("--lease", str(LEASE))
    return LocalCluster(LocalOptions(workers=workers, imports=(*MODULES, *modules), worker_flags=flags))


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with started(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def cluster(local: LocalCluster) -> AsyncIterator[psf.Cluster]:
    async with psf.connect(local.address, name="me") as cluster:
        yield cluster


async def pending(cluster: psf.Cluster, worker: str) -> list[asyncio.Future[Any]]:
    """Awaits of each kind on a worker, under way."""
    slow = cluster.remote(worker, faults.Slow, args=(30,))
    counter = cluster.remote(worker, functions.Counter)
    assert await counter.rpc_async().add(1) == 1
    waits = [
        cluster.rpc_async(worker, functions.sleep, (30,)),
        cluster.rpc_async(worker, functions.block, (30,), timeout=0),
        cluster.rpc_all([worker, "worker-0"], functions.sleep, (0.5,)),
        cluster.rpc_stream(worker, faults.slowly, (30,)).__anext__(),
        slow.to_here(),
        slow.rpc_async().anything(),
        slow.confirmed_by_owner(),
    ]
    futures = [asyncio.ensure_future(wait) for wait in waits]
    await cluster.rpc_async(worker, functions.pid)  # in order behind the others: they are there
    return futures


async def losses(futures: list[asyncio.Future[Any]]) -> list[Any]:
    """What each ended with."""
    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*futures, return_exceptions=True)


async def back(cluster: psf.Cluster, worker: str, old: int) -> int:
    """Waits until a worker answers in another life; returns its process."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                pid = await cluster.rpc_async(worker, functions.pid)
            except PeerLost:
                await asyncio.sleep(0.02)
                continue
            assert pid != old
            return int(pid)


async def test_kill_9_of_a_callee(local: LocalCluster, cluster: psf.Cluster) -> None:
    process = local.processes["worker-1"]
    (before,) = [member for member in cluster.members("worker") if member.name == "worker-1"]
    counter = cluster.remote("worker-1", functions.Counter)
    assert await counter.rpc_async().add(1) == 1
    futures = await pending(cluster, "worker-1")
    old, began = process.pid, time.monotonic()
    process.kill()
    for error in await losses(futures):
        assert isinstance(error, PeerLost) and error.peer == "worker-1", error
    assert time.monotonic() - began < 2
    with pytest.raises(PeerLost, match="worker-1"):
        await counter.to_here()

    await local.restart("worker-1")
    await back(cluster, "worker-1", old)
    (after,) = [member for member in cluster.members("worker") if member.name == "worker-1"]
    assert after.incarnation > before.incarnation
    with pytest.raises(PeerLost, match="worker-1") as caught:  # meant for the old life: never misdelivered
        await cluster.rpc_async(before, functions.pid)
    assert caught.value.reason == "incarnation" and not caught.value.may_have_run
    with pytest.raises(PeerLost, match="worker-1"):
        await counter.rpc_async().add(1)
    assert await cluster.rpc_async(after, functions.add, (1, 2)) == 3


async def test_a_callee_that_is_stopped(local: LocalCluster, cluster: psf.Cluster) -> None:
    process = local.processes["worker-1"]
    futures = await pending(cluster, "worker-1")
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        for error in await losses(futures):
            assert isinstance(error, PeerLost) and error.reason == "lease", error
        assert LEASE - 1 < time.monotonic() - began < LEASE + 2
    finally:
        process.send_signal(signal.SIGCONT)
    assert await process.wait(10) is not None, "it finds out that it was declared dead, and ends"
    await local.restart("worker-1")
    await back(cluster, "worker-1", 0)


@contextmanager
def silence(group: int) -> Iterator[None]:
    """Drops every packet that processes of a group send; nobody is told."""
    rule = ["OUTPUT", "-m", "owner", "--gid-owner", str(group), "-j", "DROP"]
    try:
        subprocess.run(["iptables", "-w", "-I", *rule], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("iptables can't be used here")
    try:
        yield
    finally:
        subprocess.run(["iptables", "-w", "-D", *rule], check=True)


async def test_a_callee_whose_packets_are_dropped() -> None:
    async with started(1, "own_group") as local, psf.connect(local.address) as cluster:
        waiting = cluster.rpc_async("worker-0", functions.sleep, (60,), timeout=0)
        assert await cluster.rpc_async("worker-0", functions.add, (1, 1)) == 2
        began = time.monotonic()
        with silence(own_group.group_of(os.getpid())):
            (error,) = await losses([waiting])
        assert isinstance(error, PeerLost) and error.reason == "lease", error
        assert LEASE - 1 < time.monotonic() - began < LEASE + 2


@asynccontextmanager
async def behind_a_link(
    local: LocalCluster, folder: Path, *flags: str
) -> AsyncIterator[tuple[FaultyLink, ServiceProcess]]:
    """A worker named `far` that can only be reached through a link."""
    token = folder / "token"
    write_token(token, local.token)
    imports = [flag for module in MODULES for flag in ("--import", module)]
    async with FaultyLink("127.0.0.1:1") as link:
        arguments = [
            "--name",
            "far",
            "--token-file",
            str(token),
            "--advertise",
            link.address,
            *imports,
            *flags,
        ]
        process = ServiceProcess(
            "far",
            "services.worker",
            [*arguments, "--coordinator", local.address],
            environment={
                "PYTHONPATH": str(Path(faults.__file__).parent),
                "PSF_SOCKETS": "0",  # they would not pass through the link
            },
        )
        process.start()
        try:
            link.redirect(await process.wait_serving(SECONDS, joined=True))
            yield link, process
        finally:
            await process.stop(SECONDS)


@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm"])
async def test_a_broken_connection_resumes_and_no_call_fails(
    local: LocalCluster, tmp_path: Path, lanes: str
) -> None:
    made = behind_a_link(local, tmp_path, "--lanes", lanes)
    async with made as (link, _), psf.connect(local.address) as cluster:
        counter, numbers = cluster.remote("far", functions.Counter), 600
        for number in range(0, numbers, 100):
            calls = [
                cluster.rpc_async("far", faults.run_once, (each,)) for each in range(number, number + 100)
            ]
            adds = [counter.rpc_async().add(1) for _ in range(10)]
            if "shm" in lanes:  # what is said between the two does not pass the link
                asyncio.get_running_loop().call_later(0.005, link.cut)
            else:
                link.after(2000, link.cut)
            assert await asyncio.gather(*calls) == list(range(number, number + 100))
            await asyncio.gather(*adds)
        assert link.accepted > 3
        assert await cluster.rpc_async("far", faults.most_runs) == (numbers, 1)
        assert await counter.rpc_async().add(0) == numbers // 10


async def test_a_view_costs_its_own_bytes(local: LocalCluster, tmp_path: Path) -> None:
    lanes = ("--lanes", "inline,striped")
    async with behind_a_link(local, tmp_path, *lanes) as (link, _), psf.connect(local.address) as cluster:
        whole = np.random.default_rng(0).integers(0, 1 << 60, (1 << 16, 9))
        await cluster.rpc_async("far", functions.add, (1, 1))
        for view in (whole[:600], whole[:, 0], whole[::100], whole[:60].T):
            before = link.passed
            nbytes, crc = await cluster.rpc_async("far", faults.checksum, (view,))
            assert (nbytes, crc) == faults.checksum(np.ascontiguousarray(view))
            assert nbytes <= link.passed - before < nbytes * 1.1 + 5000


async def test_timeouts_of_creations_and_fetches(cluster: psf.Cluster) -> None:
    late = cluster.remote("worker-0", functions.sleep, (5,), timeout=0.1)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            await late.to_here()
    slow = cluster.remote("worker-0", functions.sleep, (1,))
    with pytest.raises(DeadlineExceeded):
        await slow.to_here(timeout=0.1)
    assert await slow.to_here() == "slept"
    assert await cluster.rpc_async("worker-0", functions.add, (1, 1)) == 2


async def test_exceptions_whatever_their_constructors_take(cluster: psf.Cluster) -> None:
    with pytest.raises(RemoteError, match="1 and 2") as caught:
        await cluster.rpc_async("worker-0", faults.raise_two)
    assert caught.value.type_name.endswith("TwoArguments")
    assert "raise TwoArguments(1, 2)" in caught.value.remote_traceback
    failed = cluster.remote("worker-0", faults.raise_two)
    for _ in range(2):
        with pytest.raises(RemoteError, match="1 and 2"):
            await failed.to_here()


async def test_a_loop_that_is_held_keeps_its_lease(local: LocalCluster, cluster: psf.Cluster) -> None:
    process = local.processes["worker-0"]
    seen = len(process.output)
    held = cluster.rpc_async("worker-0", faults.hold_the_loop, (LEASE + 1.5,))
    waiting = cluster.rpc_async("worker-0", functions.add, (1, 1))
    assert await held == "held"
    assert await waiting == 2
    warnings = [line for line in list(process.output)[seen:] if "blocked" in line]
    assert len(warnings) == 1 and "psf.compute" in warnings[0], warnings


async def test_twenty_times_in_one_process(local: LocalCluster) -> None:
    for _ in range(20):
        async with psf.connect(local.address, name="again") as cluster:
            counter = cluster.remote("worker-0", functions.Counter, (1,))
            assert await counter.rpc_async().add(1) == 2


async def test_an_exit_without_shutdown(local: LocalCluster, tmp_path: Path) -> None:
    source = """
        import asyncio, sys, time
        import psframework as psf

        @psf.remote
        def double(x): return 2 * x

        async def main():
            kept.append(connection := psf.connect(sys.argv[1], token=sys.argv[2]))
            cluster = await connection.__aenter__()
            print("self", await cluster.rpc_async(cluster.name, double, (21,)))
            print("other", await cluster.rpc_async("worker-0", "remote_functions.add", (1, 2)))
            kept.append(cluster.remote("worker-0", "remote_functions.Counter"))
            print("count", await kept[1].rpc_async().add(1))
            print("left at", time.monotonic(), flush=True)

        kept = []
        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with program(tmp_path, "leaves", source, [local.address, local.token]) as leaves:
        began = float((await leaves.line("left at")).split()[-1])
        assert await leaves.end(10) == 0, leaves.process.last_words
        assert time.monotonic() - began < 2 + 4, "4 s for a machine that is busy with other tests"
        assert [
            line for line in leaves.process.output if not re.match("self 42|other 3|count 1|left at", line)
        ] == []


CALLS = {
    "call": lambda cluster: cluster.rpc_async("worker-0", functions.add, (np.ones(100_000), 1)),
    "sync": lambda cluster: cluster.rpc_async("worker-0", functions.block, (0.01,)),
    "all": lambda cluster: cluster.rpc_all(["worker-0", "worker-1"], functions.sleep, (0.01,)),
    "create": lambda cluster: cluster.remote("worker-0", functions.Counter, (1,)).confirmed_by_owner(),
    "fetch": lambda cluster: cluster.remote("worker-0", functions.add, (np.ones(100_000), 1)).to_here(),
    "method": lambda cluster: cluster.remote("worker-0", functions.Counter).rpc_async().add(1),
    "passed": lambda cluster: cluster.rpc_async("worker-1", functions.fetch, (cluster.rref([1, 2]),)),
}


async def cancelled_after(seconds: float, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Keeps nothing of the call: a task that was cancelled has its frames, and what they refer to."""
    task = asyncio.ensure_future(call())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", CALLS)
async def test_cancelling_at_each_await(local: LocalCluster, kind: str) -> None:
    async with psf.connect(local.address) as cluster:
        connected = await cluster.rpc_all(["worker-0", "worker-1"], functions.pid)
        assert len(connected) == 2

        async def call() -> None:
            await CALLS[kind](cluster)

        number = 1
        while await cancelled_at(number, call):
            number += 1
        assert number < 50
        for delay in np.linspace(0, 0.01, 20):
            await cancelled_after(delay, call)
        await call()
        await quiet(cluster)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what others tell only when asked."""
    async with asyncio.timeout(SECONDS):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def holds(cluster: psf.Cluster, member: str, worker: str) -> bool:
    """Whether a member refers to values of a worker."""
    found = await cluster.rrefs.list_of(worker)
    return any(holder.name == member for info in found for holder in info.holders)


async def quiet(cluster: psf.Cluster) -> None:
    """Waits until nothing of this member runs or is referred to anywhere."""

    async def is_quiet() -> bool:
        gc.collect()  # a reference in the frames of a call that was cancelled goes when these do
        workers = ("worker-0", "worker-1")
        running = [(await cluster.describe(worker)).running for worker in workers]
        held = [await holds(cluster, cluster.name, worker) for worker in workers]
        return not any(running) and not any(held) and not cluster.rrefs.list()

    await until(is_quiet)
    assert all(peer.statistics()["made"] == 0 for peer in cluster.agent.peers)


async def test_whoever_was_declared_dead_is_told(local: LocalCluster, tmp_path: Path) -> None:
    source = """
        import asyncio, sys
        import psframework as psf

        async def main():
            async with psf.connect(sys.argv[1], token=sys.argv[2], name="sleeper") as cluster:
                counter = cluster.remote("worker-0", "remote_functions.Counter")
                print("ready", await counter.rpc_async().add(1), flush=True)
                while True:
                    try:
                        await counter.rpc_async().add(1)
                    except psf.PeerLost:  # the call that was under way
                        assert not isinstance(counter.ref.error, psf.PeerLost)
                    except psf.Evicted:
                        print("told", flush=True)
                        return
                    await asyncio.sleep(0.05)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with program(tmp_path, "sleeps", source, [local.address, local.token]) as sleeps:
        await sleeps.line("ready")
        async with psf.connect(local.address) as cluster:
            lost = asyncio.Event()
            cluster.membership.on_lost(lambda member, _: member.name == "sleeper" and lost.set())
            sleeps.process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(SECONDS):
                await lost.wait()

            async def forgotten() -> bool:
                return not await holds(cluster, "sleeper", "worker-0")

            await until(forgotten)
            sleeps.process.send_signal(signal.SIGCONT)
            await sleeps.line("told")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lanes", ["inline,striped,shm", "inline,striped"])
async def test_more_than_two_gibibytes(lanes: str) -> None:
    options = LocalOptions(workers=1, imports=MODULES, lanes=lanes)
    async with LocalCluster(options) as local, psf.connect(local.address) as cluster:
        array = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), 2_100_000_001)
        sent = await cluster.rpc_async("worker-0", faults.checksum, (array,), timeout=300)
        assert tuple(sent) == faults.checksum(array)
        back = await cluster.rpc_async("worker-0", functions.add, (array, np.uint8(0)), timeout=300)
        assert faults.checksum(back) == faults.checksum(array)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_thirty_two_workers() -> None:
    async with psf.local_cluster(workers=32, imports=MODULES) as local, psf.connect(local.address) as cluster:
        names = [f"worker-{number}" for number in range(32)]
        assert len(set(await cluster.rpc_all(names, functions.pid))) == 32
        ring = [cluster.rpc_async(name, functions.ask, (other, "remote_functions.add", 1, 2))
                for name, other in zip(names, names[1:] + names[:1])]  # fmt: skip
        assert await asyncio.gather(*ring) == [3] * 32
