"""Process groups when members die, stop, or leave: nobody waits, all hear who it was, the rest goes on."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import group_functions as functions
import pytest

import psframework as psf
from psframework.cluster.local import LocalCluster
from psframework.testing.cluster import program

NAMES = [f"worker-{index}" for index in range(4)]
LEASE = 5.0
VALUES = 1_000_000
FURTHER = ((None, 2), ("direct", 0), ("hierarchical", 0), ("hierarchical", 2))


@dataclass
class Stage:
    """A cluster whose dead are replaced after each test."""

    local: LocalCluster
    cluster: psf.Cluster
    dead: set[str] = field(default_factory=set)

    @property
    def living(self) -> list[str]:
        return [name for name in NAMES if name not in self.dead]

    async def all(self, function: Any, *args: Any, timeout: float = 40.0, **options: Any) -> list[Any]:
        """Calls all that live."""
        return await self.cluster.rpc_all(self.living, function, args, options, timeout=timeout)

    async def busy(self, name: str) -> list[asyncio.Future[Any]]:
        """All ranks add arrays, until that fails."""
        calls = [
            self.cluster.rpc_async(each, functions.until_it_fails, (name, VALUES), timeout=40.0)
            for each in NAMES
        ]
        await until(lambda: self._beyond(name, 3))
        return calls

    async def _beyond(self, name: str, count: int) -> bool:
        return all(each > count for each in await self.all(functions.completed, name))

    def kill(self, name: str) -> None:
        self.dead.add(name)
        self.local.processes[name].kill()

    def stop(self, name: str) -> None:
        self.dead.add(name)
        os.kill(self.local.processes[name].pid, signal.SIGSTOP)

    async def revive(self) -> None:
        for name in self.dead:
            self.local.processes[name].kill()
            await self.local.restart(name)
        self.dead.clear()
        await until(self._all_here)

    async def _all_here(self) -> bool:
        return {member.name for member in self.cluster.members(role="worker")} == set(NAMES)


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with (
        psf.local_cluster(workers=len(NAMES), allreduce=1, imports=["group_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield Stage(local, cluster)


@pytest.fixture(autouse=True)
async def all_is_well_afterwards(stage: Stage) -> AsyncIterator[None]:
    """Nothing of the groups is left with those that live, and a group of all of them works."""
    yield
    await stage.all(functions.close_all)

    async def clean() -> bool:
        counts = await stage.all(functions.kept)
        return not any(each["Seat"] or each["ProcessGroup"] for each in counts)

    await until(clean)
    await stage.revive()
    await stage.all(functions.make, "well", 4)
    assert await stage.all(functions.total, "well") == [[10.0, 10.0]] * 4
    await stage.all(functions.close_all)


def survivors_say(stage: Stage, said: list[dict[str, Any]], lost: set[int]) -> None:
    """All name one of the lost ranks, and say so again."""
    assert {each["type"] for each in said} == {"PeerLost"}, said
    for each in said:
        assert each["rank"] in lost, each
        assert f"rank {each['rank']} (worker-{each['rank']}) of group 'g'" in each["text"]
        assert each["again"] == (each["type"], each["text"])


@pytest.mark.parametrize(
    ("algorithm", "victim"),
    [
        (None, 0),
        ("direct", 2),
        ("central", 2),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in FURTHER),
    ],
)
async def test_one_of_four_is_killed_in_the_middle(stage: Stage, algorithm: str | None, victim: int) -> None:
    before = [each["mapped"] for each in await stage.all(functions.kept)]
    (first, *_) = await stage.all(functions.make, "g", 4, algorithm=algorithm)
    calls = await stage.busy("g")
    began = time.monotonic()
    stage.kill(NAMES[victim])
    said = [await calls[rank] for rank in range(4) if rank != victim]
    assert time.monotonic() - began < LEASE + 1
    survivors_say(stage, said, {victim})

    made = await stage.all(functions.shrink, "g")
    assert [each["rank"] for each in made] == [0, 1, 2]
    assert all(
        each["members"] == stage.living and each["generation"] == first["generation"] + 1 for each in made
    )
    assert {each["completed"] for each in made} == {min(each["completed"] for each in said)}
    assert await stage.all(functions.total, "g") == [[6.0, 6.0]] * 3
    assert {each["completed"] for each in said} <= {made[0]["completed"], made[0]["completed"] + 1}
    with pytest.raises(psf.PeerLost):
        await calls[victim]
    if algorithm is None:  # the segment that was abandoned is gone, and that of the survivors
        await stage.all(functions.close_all)
        del before[victim]

        async def unmapped() -> bool:
            return all(
                each["mapped"] <= then
                for each, then in zip(await stage.all(functions.kept), before, strict=True)
            )

        await until(unmapped)


@pytest.mark.parametrize("algorithm", [None, pytest.param("direct", marks=pytest.mark.soak)])
async def test_one_of_four_is_stopped_in_the_middle(stage: Stage, algorithm: str | None) -> None:
    await stage.all(functions.make, "g", 4, algorithm=algorithm)
    calls = await stage.busy("g")
    began = time.monotonic()
    stage.stop("worker-1")
    said = [await calls[rank] for rank in (0, 2, 3)]
    assert time.monotonic() - began < LEASE + 1
    survivors_say(stage, said, {1})
    made = await stage.all(functions.shrink, "g")
    assert all(each["members"] == stage.living for each in made)
    assert await stage.all(functions.total, "g") == [[6.0, 6.0]] * 3
    os.kill(stage.local.processes["worker-1"].pid, signal.SIGCONT)  # it finds that it was fenced
    assert await stage.all(functions.total, "g") == [[6.0, 6.0]] * 3


async def test_two_of_four_are_killed_at_once(stage: Stage) -> None:
    """horovod#3264: the survivors do not die with them."""
    await stage.all(functions.make, "g", 4)
    calls = await stage.busy("g")
    for victim in (1, 3):
        stage.kill(NAMES[victim])
    survivors_say(stage, [await calls[0], await calls[2]], {1, 3})
    made = await stage.all(functions.shrink, "g")
    assert all(each["members"] == ["worker-0", "worker-2"] for each in made)
    assert await stage.all(functions.total, "g") == [[3.0, 3.0]] * 2


async def test_a_survivor_dies_before_the_others_have_shrunk(stage: Stage) -> None:
    await stage.all(functions.make, "g", 4)
    calls = await stage.busy("g")
    stage.kill("worker-0")
    for rank in (1, 2, 3):
        await calls[rank]
    shrinking = [stage.cluster.rpc_async(name, functions.shrink, ("g",)) for name in NAMES[1:3]]
    await asyncio.wait(shrinking, timeout=0.3)
    assert not any(each.done() for each in shrinking)  # worker-3 lives, and has not asked
    stage.kill("worker-3")
    assert [(await each)["members"] for each in shrinking] == [["worker-1", "worker-2"]] * 2
    assert await stage.all(functions.total, "g") == [[3.0, 3.0]] * 2


async def test_a_survivor_that_does_not_ask_is_named(stage: Stage) -> None:
    await stage.all(functions.make, "g", 4)
    calls = await stage.busy("g")
    stage.kill("worker-0")
    for rank in (1, 2, 3):
        await calls[rank]
    shrinking = [stage.cluster.rpc_async(name, functions.shrink, ("g", 1.0)) for name in NAMES[1:3]]
    for each in shrinking:
        with pytest.raises(psf.RendezvousTimeout, match=r"of 3 members came.*worker-3") as told:
            await each
        assert "worker-3" in told.value.missing
    made = await stage.all(functions.shrink, "g")  # all of them, the second time
    assert all(each["size"] == 3 for each in made)


async def test_who_closes_the_group_is_not_waited_for(stage: Stage) -> None:
    await stage.all(functions.make, "g", 4)
    calls = [stage.cluster.rpc_async(name, functions.total, ("g", VALUES)) for name in NAMES[:3]]
    await asyncio.sleep(0.1)
    await stage.cluster.rpc_async("worker-3", functions.close, ("g",))
    for each in calls:
        with pytest.raises(psf.PeerLost, match=r"rank 3 \(worker-3\) has closed group 'g' after operation 0"):
            await each
    made = await stage.cluster.rpc_all(NAMES[:3], functions.shrink, ("g",))
    assert all(each["members"] == NAMES[:3] for each in made)


async def test_a_member_dies_while_others_wait_for_more(stage: Stage) -> None:
    """A dead candidate is no member: the group is made of those that come later."""
    making = [stage.cluster.rpc_async(name, functions.make, ("g", 3), timeout=40.0) for name in NAMES[:2]]
    await until(lambda: candidates(stage, 2))
    stage.kill("worker-1")
    await until(lambda: gone(stage, "worker-1"))
    making += [stage.cluster.rpc_async(name, functions.make, ("g", 3), timeout=40.0) for name in NAMES[2:]]
    found = [await making[index] for index in (0, 2, 3)]
    assert all(each["members"] == ["worker-0", "worker-2", "worker-3"] for each in found)
    assert await stage.all(functions.total, "g") == [[6.0, 6.0]] * 3


async def candidates(stage: Stage, count: int) -> bool:
    keys = await stage.cluster.membership.kv.list("group/default/g/")
    return sum(not each.key.endswith("/record") for each in keys) == count


async def gone(stage: Stage, name: str) -> bool:
    return stage.cluster.membership.find(name) is None


async def test_a_rank_that_raises_ends_the_wait_of_all(stage: Stage, tmp_path: Path) -> None:
    """chainermn#236: leaving `async with psf.connect` by an error is enough."""
    source = """
        import asyncio, sys, time
        import numpy as np
        import psframework as psf

        async def main() -> None:
            async with psf.connect(sys.argv[1]) as cluster:
                group = await cluster.process_group("g", 3, rank=int(sys.argv[2]))
                await group.barrier()
                if group.rank == 1:
                    print("raises at", time.monotonic(), flush=True)
                    raise RuntimeError("a bug on rank 1")
                try:
                    await group.all_reduce(np.ones(1000))
                except psf.PeerLost as error:
                    print("lost at", time.monotonic(), error.rank, error, flush=True)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with AsyncExitStack() as stack:
        ranks = [
            await stack.enter_async_context(
                program(tmp_path, f"rank{rank}", source, [stage.local.address, str(rank)])
            )
            for rank in range(3)
        ]
        raised = float((await ranks[1].line("raises at")).split()[2])
        for rank in (0, 2):
            _, _, at, lost, text = (await ranks[rank].line("lost at")).split(maxsplit=4)
            assert float(at) - raised < LEASE - 1
            assert lost == "1", text
            assert text.startswith("rank 1 (trainer-")
        assert await ranks[0].end() == await ranks[2].end() == 0
        assert await ranks[1].end() == 1
