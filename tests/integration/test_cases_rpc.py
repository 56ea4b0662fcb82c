"""Cases of remote calls and references that users of other systems met, on real processes.

test_rpc_faults.py lists all of them, and where most are tested.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import remote_functions as functions

import psframework as psf
from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.errors import PermissionDenied
from psframework.testing.cluster import program

DEPTH = 64


def local_cluster(workers: int, *flags: str) -> LocalCluster:
    return LocalCluster(LocalOptions(workers=workers, imports=("remote_functions",), worker_flags=flags))


@pytest.fixture(scope="module")
async def guarded() -> AsyncIterator[LocalCluster]:
    """One worker: everybody may make a Counter, the boss may use it too."""
    rules = ["trainer:remote_functions.Counter", "trainer/boss:remote_functions.Counter.add"]
    async with local_cluster(1, "--allow", ",".join(rules)) as cluster:
        yield cluster


async def test_rules_hold_for_references_too(guarded: LocalCluster) -> None:
    output = guarded.processes["worker-0"].output
    async with (
        psf.connect(guarded.address, name="boss") as boss,
        psf.connect(guarded.address, name="guest") as guest,
    ):
        counter = boss.remote("worker-0", functions.Counter, (1,))
        assert await counter.rpc_async().add(1) == 2
        mine = guest.remote("worker-0", functions.Counter, (5,))
        await mine.confirmed_by_owner()
        for use in (mine.rpc_async().add(1), mine.remote().add(1).to_here()):
            with pytest.raises(PermissionDenied, match=r"guest \(trainer\) may not call .*Counter\.add here"):
                await use
        with pytest.raises(PermissionDenied, match=r"boss \(trainer\) may not call remote_functions\.pid"):
            await boss.remote("worker-0", functions.pid).to_here()
        assert await counter.rpc_async().add(1) == 3  # the one that was refused is another's
    async with asyncio.timeout(10):
        while len(refused := [line for line in [*output] if "psframework.audit" in line]) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [("peer=guest" in line, "Counter.add" in line) for line in refused] == [(True, True)] * 2 + [
        (False, False)
    ]


async def test_nested_calls_between_two_processes_of_one_thread_each() -> None:
    """pytorch#24036, #26313: A calls B calls A, to depth 64; the last one needs the thread."""
    async with local_cluster(2, "--max-running", "1") as local, psf.connect(local.address) as cluster:
        path = ["worker-1", "remote_functions.ask", "worker-0", "remote_functions.ask"] * (DEPTH // 2)
        path = [*path[:-3], "remote_functions.where_in_thread"]
        calls = [cluster.rpc_async("worker-0", functions.ask, path) for _ in range(5)]
        assert len(path) == 2 * (DEPTH - 1)
        assert await asyncio.gather(*calls) == [("thread", "worker-1", "worker-0")] * 5


async def test_twenty_begin_at_once_and_each_has_a_port_of_its_own() -> None:
    """pytorch#47461, #191560: a port that was free a moment ago is another's."""

    async def member(address: str, number: int) -> str:
        async with psf.connect(address, name=f"m-{number}") as cluster:
            await cluster.barrier("here", 20)
            other = f"m-{(number + 1) % 20}"
            assert await cluster.rpc_async(other, functions.where) == ("async", other, f"m-{number}")
            (port,) = cluster.membership.member.addresses
            await cluster.barrier("called", 20)
            return port

    async with psf.local_cluster() as local:
        ports = await asyncio.gather(*(member(local.address, number) for number in range(20)))
        assert len(set(ports)) == 20


async def test_jobs_do_not_call_each_other(guarded: LocalCluster) -> None:
    """pytorch#41614: two programs that share a coordinator and its services."""
    async with (
        psf.connect(guarded.address, name="a", job="one") as a,
        psf.connect(guarded.address, name="b", job="two") as b,
    ):
        for caller, to in ((a, "b"), (b, "a")):
            with pytest.raises(PermissionDenied, match=f"{caller.name} is of job '{caller.job}'"):
                await caller.rpc_async(to, functions.pid)
            await caller.remote("worker-0", functions.Counter).confirmed_by_owner()


async def test_a_reference_in_a_global_at_the_end(guarded: LocalCluster, tmp_path: Path) -> None:
    """pytorch#27928, #31325: the program ends with it; nothing is left at the owner, and nothing is said."""
    source = """
        import asyncio, sys
        import psframework as psf

        async def main():
            global kept
            async with psf.connect(sys.argv[1], token=sys.argv[2], name="keeper") as cluster:
                kept = cluster.remote("worker-0", "remote_functions.Counter")
                await kept.confirmed_by_owner()
                print("kept", flush=True)
                await asyncio.to_thread(sys.stdin.readline)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with psf.connect(guarded.address) as cluster:
        async with program(tmp_path, "keeps", source, [guarded.address, guarded.token]) as keeps:
            await keeps.line("kept")
            assert await keeps.end(20) == 0
            assert list(keeps.process.output) == ["kept"]
        assert await cluster.rrefs.list_of("worker-0") == []
