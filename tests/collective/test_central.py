"""The central transport against the real service's handlers: every operation, and how waits end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from collective import collect, describe, opened, prepare, run_work
from desk_double import Direct

from psframework import backend
from psframework.collective import central
from psframework.collective.algorithms import reference
from psframework.collective.central import Central
from psframework.collective.central_servicer import AllreduceServicer
from psframework.collective.descriptor import Descriptor, Operation
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost, RendezvousTimeout
from psframework.rpc.deadline import Deadline

OPERATIONS = [each for each in Operation if each.value <= 9]


@asynccontextmanager
async def group(size: int, servicer: AllreduceServicer | None = None) -> AsyncIterator[list[Central]]:
    async with servicer or AllreduceServicer() as service:
        joins = [
            Central.join(
                Direct(service, rank + 1), "default/g", size, Deadline.after(10), rank=rank, generation=3
            )
            for rank in range(size)
        ]
        ranks = await asyncio.gather(*joins)
        try:
            yield ranks
        finally:
            await asyncio.gather(*(each.close() for each in ranks))
            assert not service.desk.groups
            assert service.desk.used == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64"])
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_every_operation_has_the_bits_of_the_reference(size: int, dtype: str) -> None:
    async with group(size) as ranks:
        assert [(each.rank, each.names) for each in ranks] == [
            (rank, tuple(f"member-{n + 1}" for n in range(size))) for rank in range(size)
        ]
        sequence = 0
        for operation in OPERATIONS:
            for n in (0, 6):
                sequence += 1
                values = np.random.default_rng(n).standard_normal((size, n)) * 3
                arrays = [row.astype(backend.dtype_from_name(dtype)) for row in values]
                root = size - 1
                said = describe(operation, arrays[0], root=root, sequence=sequence)
                wanted = reference(said, dict(enumerate([each.copy() for each in arrays])), size)
                sends = [None] * size if operation is Operation.BARRIER else arrays
                got = await collect(ranks, [said] * size, sends)
                for rank in range(size):
                    assert not isinstance(got[rank], BaseException), got[rank]
                    if (array := wanted[rank]) is not None:
                        assert got[rank].tobytes() == array.tobytes(), operation  # type: ignore[union-attr]


@pytest.mark.parametrize("operation", [Operation.SCATTER, Operation.BROADCAST], ids=lambda each: each.name)
async def test_open_ranks_learn_from_the_root(operation: Operation) -> None:
    async with group(3) as ranks:
        array = np.arange(6, dtype=np.int16)
        said = describe(operation, array, root=1)
        saying = [said if rank == 1 else opened(said) for rank in range(3)]
        got = await collect(ranks, saying, [None, array, None])
        wanted = reference(said, {1: array}, 3)
        assert [each.tolist() for each in (got[0], got[2])] == [wanted[0].tolist(), wanted[2].tolist()]  # type: ignore[union-attr]


async def test_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(central, "THREAD_BYTES", 1000)
    async with group(2) as ranks:
        arrays = [np.random.default_rng(rank).standard_normal(50_000) for rank in range(2)]
        said = describe(Operation.ALL_REDUCE, arrays[0])
        wanted = arrays[0] + arrays[1]
        got = await collect(ranks, [said] * 2, arrays)
        assert got[0] is arrays[0], "in place"
        assert [each.tobytes() for each in got] == [wanted.tobytes()] * 2  # type: ignore[union-attr]


async def test_a_mismatch_and_a_refusal_leave_the_group_usable() -> None:
    async with group(2) as ranks:
        one, other = np.zeros(2), np.zeros(3, np.float32)
        got = await collect(
            ranks, [describe(Operation.ALL_REDUCE, one), describe(Operation.ALL_REDUCE, other)], [one, other]
        )
        assert all(isinstance(each, CollectiveMismatch) for each in got)
        refusal = Descriptor(2, Operation.REFUSE, note="no gradient")
        got = await collect(ranks, [describe(Operation.BARRIER, None, sequence=2), refusal], [None, None])
        assert all(isinstance(each, CollectiveMismatch) for each in got)
        assert [str(each) for each in got] == ["group 'default/g': rank 1 (member-2): no gradient"] * 2
        assert ranks[0].lives_on
        assert await collect(ranks, [Descriptor(3, Operation.BARRIER)] * 2, [None, None]) == [None, None]


async def test_who_is_missing_at_the_deadline_and_after_it() -> None:
    async with group(3) as ranks:
        said = [Descriptor(1, Operation.BARRIER)] * 3
        works = [prepare(each, rank, 3, None, Deadline.after(0.2)) for rank, each in enumerate(said)]
        got = await asyncio.gather(*(run_work(ranks[rank], works[rank]) for rank in (0, 2)))
        for error in got:
            assert isinstance(error, DeadlineExceeded)
            assert "rank 1 (member-2), whose last was operation 0" in str(error)
        assert isinstance(await run_work(ranks[1], works[1]), DeadlineExceeded)


async def test_an_abort_ends_the_operation_here_with_its_error_and_there_with_the_name() -> None:
    async with group(2) as ranks:
        works = [
            prepare(Descriptor(1, Operation.BARRIER), rank, 2, None, Deadline.after(20)) for rank in (0, 1)
        ]
        pending = asyncio.ensure_future(run_work(ranks[0], works[0]))
        await asyncio.sleep(0.05)
        mine = ValueError("mine")
        ranks[1].abort(mine)
        error = await pending
        assert isinstance(error, PeerLost)
        assert (error.peer, error.rank) == ("member-2", 1)
        assert "has left: mine" in str(error)
        assert await run_work(ranks[1], works[1]) is mine

    async with group(2) as ranks:
        pending = asyncio.ensure_future(run_work(ranks[0], works[0]))
        await asyncio.sleep(0.05)
        ranks[0].abort(mine)
        assert await pending is mine


async def test_it_waits_for_room() -> None:
    servicer = AllreduceServicer(limit=1 << 20)
    async with group(2, servicer) as ranks:
        arrays = [np.ones(10), np.ones(10)]
        servicer.desk.used = servicer.desk.limit
        running = asyncio.ensure_future(
            collect(ranks, [describe(Operation.ALL_REDUCE, arrays[0])] * 2, arrays)
        )
        await asyncio.sleep(0.15)
        assert not running.done()
        servicer.desk.used = 0
        assert [each.tolist() for each in await running] == [[2.0] * 10] * 2  # type: ignore[union-attr]


async def test_join_names_who_came() -> None:
    async with AllreduceServicer() as service:
        with pytest.raises(RendezvousTimeout, match="1 of 2 came: member-1"):
            await Central.join(Direct(service, 1), "g", 2, Deadline.after(0.1))
        assert not service.desk.groups
