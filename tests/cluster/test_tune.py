"""Measuring collectives: real ranks, each algorithm in turn, and a table of what came out."""

from __future__ import annotations

import pytest

from psframework.cluster import tune as module
from psframework.cluster.tune import Figure, Plan, tune
from psframework.collective.descriptor import Operation
from psframework.collective.tuning import Algorithm, Table
from psframework.errors import ArgumentError


async def test_two_ranks_and_two_sizes() -> None:
    shown: list[Figure] = []
    plan = Plan(ranks=(2, 2), sizes=(65536, 4096), rounds=1, seconds=0.01)
    table, figures = await tune(plan, shown.append)
    assert figures == shown
    assert [(each.ranks, each.nbytes) for each in figures] == [(2, 4096), (2, 65536)]
    for each in figures:
        assert set(each.seconds) == set(Algorithm)
        assert all(0 < seconds < 10 for seconds in each.seconds.values())
    assert Table.from_json(table.to_json()) == table
    assert set(table.whole) >= {2, 4, 16}


async def test_each_algorithm_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tables say that it opens its groups with."""
    opened: dict[str, Table] = {}

    class Groups:
        table = Table()

    class Cluster:
        groups = Groups()

        async def process_group(self, name: str, size: int, *, rank: int, algorithm: str) -> None:
            opened[name] = self.groups.table.only(algorithm, deterministic=False)

    monkeypatch.setattr(module, "current_cluster", Cluster)
    await module.TuningRank().open(0, 4)
    for nbytes in (4, 1 << 30):
        for algorithm in Algorithm:
            assert opened[f"tune-4-{algorithm}"].choose(Operation.ALL_REDUCE, nbytes, 4) is algorithm


@pytest.mark.parametrize(
    ("ranks", "sizes", "wrong"),
    [
        ((1,), (4,), "1 ranks: from 2 to 16"),
        ((2, 17), (4,), "17 ranks"),
        ((2,), (4, 3), "arrays of 3 bytes"),
        ((), (4,), "nothing to measure"),
        ((2,), (), "nothing to measure"),
    ],
)
def test_plans_that_can_not_be(ranks: tuple[int, ...], sizes: tuple[int, ...], wrong: str) -> None:
    with pytest.raises(ArgumentError, match=wrong):
        Plan(ranks, sizes)
