"""Every operation over hosts is what it is in one place; what one rank does wrong reaches all.

Inside hosts and between them ranks meet in memory here, in transports that check what they are given.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from collective import ROOTED, collect, describe, opened, prepare, run_work
from together import Together

from psframework import backend
from psframework.collective.algorithms import reference
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.hierarchical import Hierarchical
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat
from psframework.errors import CollectiveMismatch, PeerLost
from psframework.rpc.deadline import Deadline

LAYOUTS = {
    "two and two": [[0, 1], [2, 3]],
    "interleaved": [[0, 2], [1, 3]],
    "uneven": [[0, 3, 4], [1], [2, 5]],
    "one host": [[0, 1, 2]],
    "one rank a host": [[0], [1], [2]],
    "alone": [[0]],
}
OPERATIONS = [each for each in Operation if each not in (Operation.SEND, Operation.RECV, Operation.REFUSE)]
DTYPES = ["float32", "float16", "bfloat16", "int16"]


class Cluster:
    """The ranks of a group, on some hosts."""

    def __init__(self, hosts: Sequence[Sequence[int]]) -> None:
        self.size = sum(map(len, hosts))
        self.leaders = Together("g", {ranks[0]: f"trainer-{ranks[0]}" for ranks in hosts})
        self.rooms = [Together("g", {rank: f"trainer-{rank}" for rank in ranks}) for ranks in hosts]
        self.ranks = {}
        for host, ranks in enumerate(hosts):
            for index, rank in enumerate(ranks):
                local = self.rooms[host].transports[index] if len(ranks) > 1 else None
                leads = index == 0 and len(hosts) > 1
                across = self.leaders.transports[host] if leads else None
                self.ranks[rank] = Hierarchical(local, across, rank, hosts)

    async def close(self) -> None:
        for each in self.ranks.values():
            await each.close()


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
async def cluster(request):
    made = Cluster(request.param)
    yield made
    await made.close()


def whole_numbers(size: int, n: int, dtype: str, seed: int = 0) -> list[Flat]:
    """Small ones, so that sums and products are exact in whatever order."""
    made = np.random.default_rng(seed).integers(-3, 4, (size, n))
    return [row.astype(backend.dtype_from_name(dtype)) for row in made]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
async def test_operations_equal_those_in_one_place(cluster: Cluster, operation: Operation, dtype: str):
    size = cluster.size
    roots = range(size) if operation in ROOTED else [0]
    for sequence, (root, rows) in enumerate(itertools.product(roots, (0, 1, 5)), 1):
        arrays = whole_numbers(size, rows * size, dtype, sequence)
        said = describe(operation, arrays[0], root=root, sequence=sequence)
        kept = [array.copy() for array in arrays]
        wanted = reference(said, dict(enumerate(kept)), size)
        got = await collect(cluster.ranks, [said] * size, arrays)
        for rank in range(size):
            check(wanted[rank], got[rank])
            if operation is not Operation.ALL_REDUCE and not (operation is Operation.REDUCE and rank == root):
                np.testing.assert_array_equal(arrays[rank], kept[rank], "only results may be written to")


@pytest.mark.parametrize("operation", [Operation.SCATTER, Operation.BROADCAST], ids=lambda each: each.name)
async def test_open_ranks_learn_from_the_root(cluster: Cluster, operation: Operation):
    size = cluster.size
    for root in range(size):
        array = np.arange(size * 6, dtype=np.float64)
        said = replace(describe(operation, array, root=root, sequence=root + 1), shape=(size * 2, 3))
        wanted = reference(said, {root: array}, size)
        saying = [said if rank == root else opened(said) for rank in range(size)]
        learned: list[Descriptor] = []
        works = [
            prepare(each, rank, size, array if rank == root else None, Deadline.after(20))
            for rank, each in enumerate(saying)
        ]
        for work in works:
            work.allocate = noting(learned, work.allocate)
        ends = [run_work(cluster.ranks[rank], work) for rank, work in enumerate(works)]
        assert await asyncio.gather(*ends) == [None] * size
        for rank, work in enumerate(works):
            if rank != root or operation is Operation.SCATTER:
                check(wanted[rank], work.receive)
        assert {(each.shape, each.dtype, each.operation, each.root) for each in learned} <= {
            (said.shape, said.dtype, said.operation, root)
        }
        assert len(learned) == size - 1, "each open rank made one array"


def noting(learned, allocate):
    def note(told: Descriptor) -> Flat:
        learned.append(told)
        return allocate(told)

    return note


def check(wanted: Flat | None, got: object) -> None:
    if wanted is not None:
        assert isinstance(got, np.ndarray), got
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes(), (got, wanted)
    else:
        assert not isinstance(got, BaseException), got


@pytest.mark.parametrize("op", [ReduceOp.AVG, ReduceOp.SUM])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
async def test_narrow_sums_are_rounded_once_and_divided_once(cluster: Cluster, dtype: str, op: ReduceOp):
    size = cluster.size
    values = np.random.default_rng(1).standard_normal((size, 1000)).astype(np.float32)
    arrays = [row.astype(backend.dtype_from_name(dtype)) for row in values]
    exact = sum(array.astype(np.float64) for array in arrays)
    exact = exact / size if op is ReduceOp.AVG else exact
    said = describe(Operation.ALL_REDUCE, arrays[0], op=op)
    got = await collect(cluster.ranks, [said] * size, arrays)
    assert len({each.tobytes() for each in got}) == 1, "the same bits on every rank"  # type: ignore[union-attr]
    once = exact.astype(np.float32).astype(arrays[0].dtype)
    assert np.mean(got[0] != once) < 0.02, "all but some sums on the edge between two numbers"


async def test_a_large_float32_sum_has_the_same_bits_on_every_rank(cluster: Cluster):
    size = cluster.size
    arrays = list(np.random.default_rng(2).standard_normal((size, 100_000)).astype(np.float32))
    mean = np.mean(np.stack(arrays), axis=0, dtype=np.float64)
    said = describe(Operation.ALL_REDUCE, arrays[0], op=ReduceOp.AVG)
    got = await collect(cluster.ranks, [said] * size, arrays)
    assert len({each.tobytes() for each in got}) == 1  # type: ignore[union-attr]
    np.testing.assert_allclose(got[0], mean, atol=1e-6)


async def test_one_array_of_a_host_crosses(cluster: Cluster):
    arrays = whole_numbers(cluster.size, 8, "float32")
    said = describe(Operation.ALL_REDUCE, arrays[0])
    await collect(cluster.ranks, [said] * cluster.size, arrays)
    assert cluster.leaders.operations == (["ALL_REDUCE"] if len(cluster.rooms) > 1 else [])


@pytest.mark.parametrize("wrong", ["shape", "dtype", "op", "operation", "refuse"])
async def test_what_one_rank_does_differently_reaches_all(cluster: Cluster, wrong: str):
    size = cluster.size
    arrays = whole_numbers(size, 4 * size, "float32")
    said = describe(Operation.ALL_REDUCE, arrays[0])
    for odd in range(size):
        if size == 1 and wrong != "refuse":
            return
        saying, sends = [said] * size, list(arrays)
        saying[odd], sends[odd] = differently(wrong, said, arrays[odd])
        got = await collect(cluster.ranks, saying, sends)
        assert all(isinstance(each, CollectiveMismatch) for each in got), (odd, got)
        assert all(str(each).count("group '") <= 1 for each in got), "who passes it on is not named"
        if wrong == "refuse":
            who = f"rank {odd} (trainer-{odd}): " if size > 1 else ""
            assert all(f"{who}no gradient for 'w'" in str(each) for each in got), got
        else:
            assert any(f"{odd} (trainer-{odd})" in str(each) for each in got), got
            assert all(str(saying[odd]) in str(each) and str(said) in str(each) for each in got), got
        fine = await collect(cluster.ranks, [said] * size, [array.copy() for array in arrays])
        check(reference(said, dict(enumerate(arrays)), size)[0], fine[0])


def differently(wrong: str, said: Descriptor, array: Flat) -> tuple[Descriptor, Flat | None]:
    if wrong == "shape":
        return replace(said, shape=(2, 3)), np.zeros(6, np.float32)
    if wrong == "dtype":
        return replace(said, dtype="float16"), array.astype(np.float16)
    if wrong == "op":
        return replace(said, op=ReduceOp.MAX), array
    if wrong == "operation":
        return describe(Operation.BARRIER, None), None
    return Descriptor(1, Operation.REFUSE, note="no gradient for 'w'"), None


async def test_a_lost_rank_ends_the_step_that_runs_and_all_after_it(cluster: Cluster):
    if cluster.size == 1:
        return
    arrays = whole_numbers(cluster.size, 4, "float32")
    said = describe(Operation.ALL_REDUCE, arrays[0])
    lost = PeerLost("rank 0 (trainer-0) is gone", peer="trainer-0")
    works = [
        prepare(said, rank, cluster.size, arrays[rank], Deadline.after(20)) for rank in range(1, cluster.size)
    ]
    pending = [
        asyncio.ensure_future(run_work(cluster.ranks[rank], work)) for rank, work in enumerate(works, 1)
    ]
    await asyncio.sleep(0)
    for transport in cluster.ranks.values():
        transport.abort(lost)
    assert await asyncio.gather(*pending) == [lost] * (cluster.size - 1)
    again = prepare(said, 1, cluster.size, arrays[1], Deadline.after(20))
    assert await run_work(cluster.ranks[1], again) is lost
