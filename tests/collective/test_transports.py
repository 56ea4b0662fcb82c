"""Each kind of transport, made as rank 0 decides, adds arrays."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from group_clusters import Clusters, clusters

from psframework.collective import decision, transports
from psframework.collective.tuning import Algorithm, Table
from psframework.errors import ArgumentError
from psframework.proto.v1 import collective_pb2 as pb


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


async def test_all_take_the_table_of_rank_0(world: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Table] = []

    class Network(transports.Network):
        def __init__(self, post: object, table: Table, *more: object, **options: object) -> None:
            taken.append(table)
            super().__init__(post, table, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(transports, "Network", Network)
    monkeypatch.setattr(transports, "table", lambda spec: Table(whole={2: 77}).to_json().encode())
    await world.group("g", await world.join("a", "b"), algorithm="direct")
    assert [each.whole for each in taken] == [{2: 77}] * 2


def test_the_table_is_for_what_was_asked() -> None:
    ring = Table.from_json(transports.table(pb.GroupSpec(algorithm="ring")).decode())
    assert ring.large(2) is Algorithm.RING
    sure = Table.from_json(transports.table(pb.GroupSpec(deterministic=True)).decode())
    assert sure.large(100) is Algorithm.DIRECT
    for algorithm in "ring", "hierarchical":
        with pytest.raises(ArgumentError, match="deterministic"):
            transports.table(pb.GroupSpec(algorithm=algorithm, deterministic=True))


async def test_a_ring_is_not_deterministic_on_any_rank(world: Clusters) -> None:
    members = await world.join("a", "b")
    asked = [each.process_group("g", 2, algorithm="ring", deterministic=True) for each in members]
    for failed in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(failed, ArgumentError)
        assert "deterministic" in str(failed)


def test_every_algorithm_has_a_transport() -> None:
    """Those that are tested here, and the central one, which needs a service: tests/integration."""
    assert set(decision.ALGORITHMS) == {"shm", "direct", "ring", "hierarchical", "central"}


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
