"""Process groups of real processes: made, found, split, ended."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import group_functions as functions
import pytest

import psframework as psf
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, RendezvousTimeout
from psframework.testing.cluster import program

WORKERS = [f"worker-{index}" for index in range(4)]


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[psf.Cluster]:
    async with (
        psf.local_cluster(workers=len(WORKERS), imports=["group_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield cluster


async def everywhere(cluster: psf.Cluster, names: Sequence[str], function: Any, *args: Any) -> list[Any]:
    return await cluster.rpc_all(names, function, args, timeout=40.0)


async def test_two_programs_add_arrays(tmp_path: Path) -> None:
    """The shortest program that there is."""
    source = """
        import asyncio, sys
        import numpy as np
        import psframework as psf

        async def main() -> None:
            async with psf.connect(sys.argv[1]) as cluster:
                group = await cluster.process_group("g", 2)
                a = np.full(5, group.rank + 1.0)
                await group.all_reduce(a)
                print("sum", a.tolist(), group.transport, group.rank, list(group.members), flush=True)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with psf.local_cluster() as local, AsyncExitStack() as stack:
        ranks = [
            await stack.enter_async_context(program(tmp_path, name, source, [local.address]))
            for name in ("one", "other")
        ]
        lines = sorted([await rank.line("sum") for rank in ranks])
        assert lines == [
            f"sum [3.0, 3.0, 3.0, 3.0, 3.0] shm {rank} ['trainer-0', 'trainer-1']" for rank in (0, 1)
        ]
        assert [await rank.end() for rank in ranks] == [0, 0]


async def test_ranks_that_can_share_no_memory_are_on_different_hosts(tmp_path: Path) -> None:
    """As containers with and without a common folder for sockets: two share memory, the third does not."""
    source = """
        import asyncio, os, sys
        os.environ["PSF_SHM_DIR"] = sys.argv[3]
        import numpy as np
        import psframework as psf

        async def main() -> None:
            async with psf.connect(sys.argv[1]) as cluster:
                group = await cluster.process_group("g", 3, rank=int(sys.argv[2]))
                for values in (3, 500_000):
                    a = np.full(values, group.rank + 1.0)
                    await group.all_reduce(a)
                print("sum", a[0], a[-1], group.transport, flush=True)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with psf.local_cluster() as local, AsyncExitStack() as stack:
        ranks = []
        for rank, folder in enumerate(("x", "y", "x")):
            (tmp_path / folder).mkdir(mode=0o700, exist_ok=True)
            arguments = [local.address, str(rank), str(tmp_path / folder)]
            ranks.append(await stack.enter_async_context(program(tmp_path, f"rank{rank}", source, arguments)))
        assert [await rank.line("sum") for rank in ranks] == ["sum 6.0 6.0 hierarchical"] * 3
        assert [await rank.end() for rank in ranks] == [0, 0, 0]


async def test_ranks_follow_the_natural_order_of_names(cluster: psf.Cluster) -> None:
    found = await everywhere(cluster, WORKERS[::-1], functions.make, "natural", 4)
    assert [each["rank"] for each in found] == [3, 2, 1, 0]
    assert {each["transport"] for each in found} == {"shm"}
    assert all(each["members"] == WORKERS and each["size"] == 4 for each in found)
    assert await everywhere(cluster, WORKERS, functions.total, "natural") == [[10.0, 10.0]] * 4
    assert await everywhere(cluster, WORKERS, functions.make_again, "natural", 4) == [True] * 4
    await everywhere(cluster, WORKERS, functions.close, "natural")


async def test_asked_ranks_are_given(cluster: psf.Cluster) -> None:
    made = [
        cluster.rpc_async(name, functions.make, ("asked", 3), {"rank": rank})
        for name, rank in zip(WORKERS, (2, 0, 1), strict=False)
    ]
    assert [(await each)["rank"] for each in made] == [2, 0, 1]
    await everywhere(cluster, WORKERS[:3], functions.close, "asked")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((0, 0, 1), r"rank 0 by worker-\d and worker-\d"),
        ((0, 1, 3), "rank 3 of 3 by worker-2"),
        ((0, None, 2), "none by worker-1"),
    ],
)
async def test_ranks_that_can_not_be_are_an_error_on_all(
    cluster: psf.Cluster, ranks: tuple[int | None, ...], text: str
) -> None:
    made = [
        cluster.rpc_async(name, functions.make, ("wrong", 3), {"rank": rank})
        for name, rank in zip(WORKERS, ranks, strict=False)
    ]
    for each in made:
        with pytest.raises(ArgumentError, match=text):
            await each


async def test_different_sizes_are_named_on_all(cluster: psf.Cluster) -> None:
    made = [
        cluster.rpc_async(name, functions.make, ("sizes", 2 + rank)) for rank, name in enumerate(WORKERS[:2])
    ]
    for each in made:
        with pytest.raises(
            ArgumentError, match=r"world_size=2 \(worker-0\).*world_size=3 \(worker-1\)|world_size=3.*"
        ):
            await each


async def test_two_groups_created_at_once_both_exist(cluster: psf.Cluster) -> None:
    """ray#50132; every member asks for both at the same time, half of them in the other order."""
    made = [
        cluster.rpc_async(name, functions.make, (group, 4))
        for index, name in enumerate(WORKERS)
        for group in ("ab" if index % 2 else "ba")
    ]
    assert len(await asyncio.gather(*made)) == 8
    sums = [cluster.rpc_async(name, functions.total, (group,)) for group in "ab" for name in WORKERS]
    assert await asyncio.gather(*sums) == [[10.0, 10.0]] * 8
    for group in "ab":
        await everywhere(cluster, WORKERS, functions.close, group)


async def test_who_did_not_come_is_counted(cluster: psf.Cluster) -> None:
    async with psf.connect(cluster.membership.line.addresses.current, name="early", timeout=1.0) as early:
        with pytest.raises(
            RendezvousTimeout, match=r"1 of 3 members came within 1(\.0\d*)? s: early; 2 did not.*caller"
        ) as told:
            await early.process_group("late", 3)
        assert told.value.missing == ("caller",)
    assert await cluster.membership.kv.list("group/default/late/") == ()


async def test_a_surplus_candidate_waits_for_the_next_generation(cluster: psf.Cluster) -> None:
    made = [cluster.rpc_async(name, functions.make, ("pairs", 2)) for name in WORKERS[:3]]
    done, waiting = await asyncio.wait(made, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    members = {name for each in done for name in each.result()["members"]}
    (left,) = set(WORKERS[:3]) - members
    last = await cluster.rpc_async(WORKERS[3], functions.make, ("pairs", 2))
    (other,) = waiting
    assert {each.result()["generation"] for each in done} == {1}
    assert (await other)["members"] == last["members"] == sorted([left, WORKERS[3]])
    assert last["generation"] == 2
    for pair in (sorted(members), last["members"]):
        assert await everywhere(cluster, pair, functions.total, "pairs") == [[3.0, 3.0]] * 2
    await everywhere(cluster, WORKERS, functions.close, "pairs")


async def test_after_close_the_name_is_of_a_new_generation(cluster: psf.Cluster) -> None:
    for generation in (1, 2, 3):
        found = await everywhere(cluster, WORKERS[:2], functions.make, "again", 2)
        assert {each["generation"] for each in found} == {generation}
        assert await everywhere(cluster, WORKERS[:2], functions.total, "again") == [[3.0, 3.0]] * 2
        await everywhere(cluster, WORKERS[:2], functions.close, "again")


@pytest.mark.parametrize("algorithm", ["direct", "ring", "shm", "hierarchical"])
async def test_an_algorithm_can_be_asked_for(cluster: psf.Cluster, algorithm: str) -> None:
    made = [
        cluster.rpc_async(name, functions.make, (algorithm, 4), {"algorithm": algorithm}) for name in WORKERS
    ]
    assert {(await each)["transport"] for each in made} == {algorithm}
    for values in (1, 1000, 1_000_000):
        sums = [cluster.rpc_async(name, functions.total, (algorithm, values)) for name in WORKERS]
        assert await asyncio.gather(*sums) == [[10.0, 10.0]] * 4
    await everywhere(cluster, WORKERS, functions.close, algorithm)


async def test_one_process_is_a_group_too(cluster: psf.Cluster) -> None:
    async with await cluster.process_group("alone", 1) as group:
        assert (group.rank, group.size, group.transport) == (0, 1, "alone")
        await group.barrier()


async def test_a_group_is_split_by_color(cluster: psf.Cluster) -> None:
    await everywhere(cluster, WORKERS, functions.make, "whole", 4)
    colors, keys = [1, 0, 1, None], [5, 0, 2, 0]
    calls = [
        cluster.rpc_async(name, functions.split, ("whole", color, key, "part"))
        for name, color, key in zip(WORKERS, colors, keys, strict=True)
    ]
    first, second, third, last = await asyncio.gather(*calls)
    assert last is None
    assert first["members"] == third["members"] == ["worker-2", "worker-0"]  # by key
    assert second["members"] == ["worker-1"]
    sums = [cluster.rpc_async(name, functions.total, ("part",)) for name in WORKERS[:3]]
    assert await asyncio.gather(*sums) == [[3.0, 3.0], [1.0, 1.0], [3.0, 3.0]]
    assert await everywhere(cluster, WORKERS, functions.total, "whole") == [[10.0, 10.0]] * 4
    await everywhere(cluster, WORKERS[:3], functions.close, "part")
    await everywhere(cluster, WORKERS, functions.close, "whole")


async def test_groups_do_not_wait_for_each_other(cluster: psf.Cluster) -> None:
    """A collective of one group that lacks a rank blocks no other group of the same processes."""
    for group in ("slow", "quick"):
        await everywhere(cluster, WORKERS[:2], functions.make, group, 2)
    waiting = cluster.rpc_async(WORKERS[0], functions.total, ("slow",))
    for _ in range(5):
        assert await everywhere(cluster, WORKERS[:2], functions.total, "quick") == [[3.0, 3.0]] * 2
    assert not waiting.done()
    assert await cluster.rpc_async(WORKERS[1], functions.total, ("slow",)) == [3.0, 3.0]
    assert await waiting == [3.0, 3.0]
    for group in ("slow", "quick"):
        await everywhere(cluster, WORKERS[:2], functions.close, group)


@pytest.mark.parametrize("algorithm", ["shm", "direct"])
async def test_a_deadline_names_the_missing_rank_and_its_last_operation(
    cluster: psf.Cluster, algorithm: str
) -> None:
    """ray#25130, ray#36317: each call may say how long it waits."""
    made = [
        cluster.rpc_async(name, functions.make, ("skips", 3), {"algorithm": algorithm})
        for name in WORKERS[:3]
    ]
    await asyncio.gather(*made)
    await everywhere(cluster, WORKERS[:3], functions.barrier, "skips")
    calls = [cluster.rpc_async(name, functions.total, ("skips", 1000, 0.5)) for name in WORKERS[:2]]
    for each in calls:
        with pytest.raises(DeadlineExceeded, match=r"missing: rank 2 \(worker-2\).*its last is 1, barrier"):
            await each
    with pytest.raises(DeadlineExceeded, match=r"rank 2 \(worker-2\)"):  # it heard of it
        await cluster.rpc_async(WORKERS[2], functions.barrier, ("skips",))
    await everywhere(cluster, WORKERS[:3], functions.close, "skips")


async def test_messages_between_two_ranks(cluster: psf.Cluster) -> None:
    await everywhere(cluster, WORKERS[:2], functions.make, "post", 2)
    await cluster.rpc_async(WORKERS[0], functions.send, ("post", 1, 7.0))
    await cluster.rpc_async(WORKERS[0], functions.send, ("post", 1, 8.0))
    assert await cluster.rpc_async(WORKERS[1], functions.recv, ("post", 0)) == 7.0
    waits = cluster.rpc_async(WORKERS[0], functions.recv, ("post", 1))
    await everywhere(cluster, WORKERS[1:2], functions.close, "post")
    with pytest.raises(psf.PeerLost, match=r"rank 1 \(worker-1\) has closed group 'post'"):
        await waits
    await everywhere(cluster, WORKERS[:1], functions.close, "post")


async def test_a_rank_that_closes_spoils_no_operation_that_it_took_part_in(cluster: psf.Cluster) -> None:
    for _ in range(10):
        await everywhere(cluster, WORKERS, functions.make, "brief", 4)
        ends = [cluster.rpc_async(name, functions.barrier_and_close, ("brief",)) for name in WORKERS]
        assert await asyncio.gather(*ends) == [1] * 4


async def test_a_group_ends_with_its_cluster(cluster: psf.Cluster) -> None:
    async with psf.connect(cluster.membership.line.addresses.current, name="guest") as guest:
        mine, theirs = await asyncio.gather(
            cluster.process_group("with-guest", 2), guest.process_group("with-guest", 2)
        )
        await asyncio.gather(mine.barrier(), theirs.barrier())
    assert theirs.closed
    with pytest.raises(ContextClosed):
        await theirs.barrier()
    with pytest.raises(psf.PeerLost, match="guest"):
        await mine.barrier()
    await mine.close()


async def test_nothing_is_left_of_groups_that_were_closed(cluster: psf.Cluster) -> None:
    before = [each["mapped"] for each in await everywhere(cluster, WORKERS, functions.kept)]
    await everywhere(cluster, WORKERS, functions.make, "kept", 4)
    during = [each["mapped"] for each in await everywhere(cluster, WORKERS, functions.kept)]
    assert all(now > then for now, then in zip(during, before, strict=True))
    await everywhere(cluster, WORKERS, functions.close, "kept")

    async def clean() -> bool:
        counts = await everywhere(cluster, WORKERS, functions.kept)
        keys = [each.key for each in await cluster.membership.kv.list("group/default/")]
        assert not [key for key in keys if "/kept/" not in key and not key.endswith("/record")]
        return (
            [each["mapped"] for each in counts] == before
            and not any(each["Seat"] or each["ProcessGroup"] for each in counts)
            and all(key.endswith("/record") for key in keys)
        )

    async with asyncio.timeout(10):
        while not await clean():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
