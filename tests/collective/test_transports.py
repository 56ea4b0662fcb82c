"""Each kind of transport, made as rank 0 decides, adds arrays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from group_clusters import Clusters, clusters

from psframework.collective import decision, transports
from psframework.collective.group import ProcessGroup
from psframework.collective.tuning import NEVER, Table
from psframework.errors import ArgumentError, CollectiveMismatch, ConfigurationError, ResourceExhausted
from psframework.proto.v1 import collective_pb2 as pb
from psframework.wire.shm import Segment


@pytest.fixture
async def world() -> AsyncIterator[Clusters]:
    async with clusters() as world:
        yield world


def separate(monkeypatch: pytest.MonkeyPatch, hosts: Sequence[Sequence[int]]) -> None:
    """Says which ranks are on one machine."""

    def by_place(members: Sequence[pb.Candidate], algorithm: str) -> list[list[int]]:
        return [list(ranks) for ranks in hosts]

    monkeypatch.setattr("psframework.collective.setup.by_place", by_place)


@pytest.mark.parametrize(
    ("hosts", "algorithm", "expected"),
    [
        ([[0]], None, "alone"),
        ([[0, 1, 2]], None, "shm"),
        ([[0], [1], [2]], None, "direct"),
        ([[0], [1], [2]], "ring", "ring"),
        ([[0, 2], [1]], None, "hierarchical"),
        ([[0, 3], [1, 2]], None, "hierarchical"),
        ([[0, 1]], "hierarchical", "hierarchical"),
        ([[0], [1]], "hierarchical", "hierarchical"),
    ],
)
async def test_the_sum_is_right(
    world: Clusters,
    monkeypatch: pytest.MonkeyPatch,
    hosts: Sequence[Sequence[int]],
    algorithm: str | None,
    expected: str,
) -> None:
    separate(monkeypatch, hosts)
    size = sum(map(len, hosts))
    members = await world.join(*"abcd"[:size])
    groups = await world.group("g", members, algorithm=algorithm)
    assert {each.transport for each in groups} == {expected}
    arrays = [np.arange(5000) * (rank + 1.0) for rank in range(size)]
    await asyncio.gather(*(each.all_reduce(array) for each, array in zip(groups, arrays, strict=True)))
    for array in arrays:
        np.testing.assert_array_equal(array, np.arange(5000) * (size * (size + 1) / 2))
    seat = members[0].groups._seat(groups[0])
    assert [list(ranks) for ranks in seat.hosts] == [list(ranks) for ranks in hosts]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"algorithm": "direct"}, Table({2: 77}, NEVER)),
        ({"algorithm": "ring"}, Table({}, 2)),
        ({"deterministic": True}, Table({2: 77}, NEVER)),
        ({}, Table({2: 77}, 5)),
    ],
)
async def test_the_table_is_for_what_was_asked(
    world: Clusters, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: Table
) -> None:
    taken: list[Table] = []

    class Network(transports.Network):
        def __init__(self, post: object, table: Table, *more: object, **options: object) -> None:
            taken.append(table)
            super().__init__(post, table, *more, **options)  # type: ignore[arg-type]

    separate(monkeypatch, [[0], [1]])
    monkeypatch.setattr(transports, "Network", Network)
    members = await world.join("a", "b")
    for each in members:
        each.groups.table = Table({2: 77}, 5)
    await world.group("g", members, **options)
    assert taken == [expected] * 2


async def test_ranks_with_different_tables_hear_of_both(world: Clusters) -> None:
    members = await world.join("a", "b", "c")
    members[1].groups.table = other = Table({2: 77})
    asked = [each.process_group("g", 3) for each in members]
    for failed in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(failed, ArgumentError)
        assert "world_size=3, built-in tuning table (a, c)" in str(failed)
        assert f"world_size=3, tuning table {other.digest} (b)" in str(failed)
        assert str(failed).endswith("; give all the same file (PSF_TUNING)")


async def test_a_table_is_read_once_and_a_bad_one_is_named(
    world: Clusters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("PSF_TUNING", str(path))
    path.write_text("{")
    (member,) = await world.join("a")
    with pytest.raises(ConfigurationError, match=f"tuning table {path}.*Expecting"):
        await member.process_group("g", 1)
    path.write_text(Table({2: 77}).to_json())
    await member.process_group("g", 1)
    path.write_text("{")
    await member.process_group("h", 1)
    assert member.groups.table == Table({2: 77})


async def test_a_ring_is_not_deterministic_on_any_rank(world: Clusters) -> None:
    members = await world.join("a", "b")
    asked = [each.process_group("g", 2, algorithm="ring", deterministic=True) for each in members]
    for failed in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(failed, ArgumentError)
        assert "deterministic" in str(failed)


def test_every_algorithm_has_a_transport() -> None:
    """Those that are tested here, and the central one, which needs a service: tests/integration."""
    assert set(decision.ALGORITHMS) == {"shm", "direct", "ring", "hierarchical", "central"}


@pytest.mark.parametrize("algorithm", ["shm", "direct", "ring", "hierarchical"])
async def test_arrays_that_ranks_would_make_differently_are_told_to_all(algorithm: str) -> None:
    async with clusters() as world:

        async def each(one: Callable[[ProcessGroup], Awaitable[object]], name: str) -> list[object]:
            made = await world.group(name, list(world.members.values()), algorithm=algorithm)
            return await asyncio.gather(*map(one, made), return_exceptions=True)

        await world.join("a", "b")
        differ = await each(lambda group: group.empty(4 + 4000 * group.rank), "differ")
        assert [type(error) for error in differ] == [CollectiveMismatch] * 2
        assert all("empty(float32 of shape (4,))" in str(error) for error in differ)
        mine, theirs = await each(lambda group: group.empty((-1,) if group.rank == 0 else 4), "bad")
        assert isinstance(mine, ArgumentError) and "shape (-1,)" in str(mine)
        assert isinstance(theirs, CollectiveMismatch) and "empty: ArgumentError" in str(theirs)
        mine, theirs = await each(lambda group: group.split("x" if group.rank == 0 else 1), "split")  # type: ignore[arg-type]
        assert isinstance(mine, ArgumentError) and "color='x'" in str(mine)
        assert isinstance(theirs, CollectiveMismatch) and "split: ArgumentError" in str(theirs)
        mine, _ = await each(lambda group: group.split(0, 0.5), "key")  # type: ignore[arg-type]
        assert isinstance(mine, ArgumentError) and "key=0.5" in str(mine)
        arrays = await each(lambda group: group.empty(np.int64(4), "int8"), "right")  # type: ignore[arg-type]
        assert all(np.array_equal(array, np.zeros(4, np.int8)) for array in arrays)  # type: ignore[arg-type]


async def test_resident_arrays_of_ranks_that_share_memory_are_reduced_in_place() -> None:
    async with clusters() as world:
        groups = await world.group("g", await world.join("a", "b"))
        first = await asyncio.gather(*(each.empty(100_000) for each in groups))
        second = await asyncio.gather(*(each.empty((300, 400), "float64") for each in groups))
        for arrays in (first, second):
            for rank, each in enumerate(arrays):
                each[:] = rank + 1
            steps = [each._transport._step for each in groups]  # type: ignore[attr-defined]
            await asyncio.gather(
                *(group.all_reduce(each) for group, each in zip(groups, arrays, strict=True))
            )
            assert all((each == 3).all() for each in arrays)
            after = [each._transport._step for each in groups]  # type: ignore[attr-defined]
            assert after == [step + 2 for step in steps]  # barriers; copied through slots it takes one


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_cancelled_resident_array_is_made_all_the_same(rank: int) -> None:
    """Others wait for it, and for the number of the next one."""
    async with clusters() as world:
        groups = await world.group("g", await world.join("a", "b"))
        made = [asyncio.ensure_future(each.empty(100_000)) for each in groups]
        await asyncio.sleep(0)
        made[rank].cancel()
        assert not (await asyncio.wait_for(made[1 - rank], 5)).any()
        with pytest.raises(asyncio.CancelledError):
            await made[rank]
        arrays = await asyncio.wait_for(asyncio.gather(*(each.empty(200_000) for each in groups)), 5)
        for group, each in zip(groups, arrays, strict=True):
            each[:] = group.rank + 1
        await asyncio.gather(*(group.all_reduce(each) for group, each in zip(groups, arrays, strict=True)))
        assert all((each == 3).all() for each in arrays)


async def test_without_memory_all_ranks_hear_of_it_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    create, full = Segment.create, [True]

    def creates(nbytes: int) -> Segment:
        if full:
            raise ResourceExhausted("no room")
        return create(nbytes)

    async with clusters() as world:
        groups = await world.group("g", await world.join("a", "b", "c"))
        monkeypatch.setattr(Segment, "create", creates)
        for failed in await asyncio.gather(*(each.empty(100_000) for each in groups), return_exceptions=True):
            assert isinstance(failed, ResourceExhausted)
        full.clear()
        arrays = await asyncio.wait_for(asyncio.gather(*(each.empty(100_000) for each in groups)), 5)
        for group, each in zip(groups, arrays, strict=True):
            each[:] = group.rank + 1
        await asyncio.gather(*(group.all_reduce(each) for group, each in zip(groups, arrays, strict=True)))
        assert all((each == 6).all() for each in arrays)
