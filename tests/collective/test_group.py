"""What a group is besides its operations: objects, other threads, refusal, deadlines, ends, its report."""

import asyncio
import threading

import numpy as np
import pytest
from groups import groups

from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp
from psframework.errors import CollectiveMismatch, ContextClosed, DeadlineExceeded, PeerLost


async def test_objects():
    async with groups(3) as made:
        value = {"lr": 0.1, "names": ["a", "b"], "x": np.arange(3)}
        got = await asyncio.gather(*(g.broadcast_object(value if g.rank == 1 else None, 1) for g in made))
        assert got[1] is value
        for each in (got[0], got[2]):
            np.testing.assert_equal(each, value)
            assert each is not value
        got = await asyncio.gather(*(g.gather_object([g.rank] * (g.rank * 100), 2) for g in made))
        assert got == [None, None, [[], [1] * 100, [2] * 200]]


async def test_an_object_that_cannot_travel():
    async with groups(2) as (a, b):
        other = b.broadcast_object(None, 0)
        with pytest.raises(TypeError, match="function"):
            a.broadcast_object(lambda: None, 0)
        with pytest.raises(CollectiveMismatch, match=r"rank 0 \(trainer-0\): broadcast_object: CannotTravel"):
            await other
        await asyncio.gather(a.barrier(), b.barrier())


async def test_begin_from_another_thread():
    async with groups(2, threaded=True) as made:
        arrays = [np.ones(4), np.ones(4)]
        ended = threading.Semaphore(0)
        errors = []

        def step(group):
            for _ in range(10):
                group.begin(
                    Operation.ALL_REDUCE,
                    arrays[group.rank],
                    arrays[group.rank],
                    op=ReduceOp.AVG,
                    on_done=lambda error: (errors.append(error), ended.release()),
                )

        for group in made:
            await asyncio.to_thread(step, group)
        for _ in range(20):
            assert await asyncio.to_thread(ended.acquire, timeout=10)
        assert errors == [None] * 20
        np.testing.assert_array_equal(arrays, np.ones((2, 4)))
        await asyncio.gather(*(group.barrier() for group in made))
        assert made[0].last_completed == 11


async def test_begin_delivers_errors():
    async with groups(2) as (a, b):
        errors = []
        a.begin(Operation.BARRIER, None, None, on_done=errors.append)
        a.begin(Operation.BARRIER, None, None, on_done=errors.append)
        with pytest.raises(CollectiveMismatch):
            await b.all_reduce(np.ones(2))
        assert [type(error) for error in errors] == [CollectiveMismatch] * 2


async def test_refusing():
    async with groups(3) as made:
        others = [group.all_reduce(np.ones(2)) for group in made[:2]]
        behind = made[0].barrier()
        for each in (made[2].refuse("parameter 'w' got no gradient"), *others, behind):
            with pytest.raises(CollectiveMismatch, match=r"rank 2 \(trainer-2\): parameter 'w' got no grad"):
                await each
        await asyncio.gather(*(group.barrier() for group in made))
        assert [group.last_completed for group in made] == [2, 2, 2]


async def test_a_deadline_names_who_is_missing_and_ends_the_group_everywhere(caplog):
    """ray#25130, ray#36317."""
    async with groups(3) as made:
        await asyncio.gather(*(group.all_reduce(np.ones(2)) for group in made))
        other = made[2].barrier(timeout=0)
        with pytest.raises(DeadlineExceeded) as caught:
            await made[0].barrier(timeout=0.05)
        text = str(caught.value)
        assert "missing: rank 1 (trainer-1), in no operation" in text
        assert "its last is 1, all_reduce(float64 of shape (2,), SUM)" in text
        for each in (other, made[1].barrier(), made[0].all_reduce(np.ones(2))):
            with pytest.raises(DeadlineExceeded, match="missing: rank 1"):
                await each
        assert made.connection.told[0][0] == 0 and len(made.connection.told) == 1
        assert "missing: rank 1" in caplog.text and "barrier()" in caplog.text


async def test_a_rank_that_answers_nothing_is_missing_too():
    async with groups(3) as made:
        made.connection.silent.add(1)
        made[2].barrier(timeout=0).cancel()
        with pytest.raises(DeadlineExceeded, match=r"missing: rank 1 \(trainer-1\), which does not answer"):
            await made[0].barrier(timeout=0.05)


async def test_a_lost_member_ends_all_that_runs_and_comes():
    async with groups(2) as (a, b):
        runs, waits = a.all_reduce(np.ones(2)), a.barrier()
        a.abort(PeerLost("rank 1 (trainer-1) is gone", peer="trainer-1", rank=1))
        for each in (runs, waits, a.barrier(), a.recv(1)):
            with pytest.raises(PeerLost, match="rank 1") as caught:
                await each
            assert caught.value.rank == 1
        assert isinstance(a.error, PeerLost) and b.error is None


async def test_closing_in_order_disturbs_nothing():
    async with groups(2, threaded=True) as (a, b):
        x = np.ones(3)
        last = b.all_reduce(x)
        await a.all_reduce(np.ones(3))
        await a.close()
        assert (await last).tolist() == [2, 2, 2]
        with pytest.raises(PeerLost, match="rank 0"):
            await b.barrier()
        with pytest.raises(ContextClosed, match="'g' is closed"):
            await a.barrier()


async def test_one_that_left_is_no_news_to_the_others():
    """Told by one that is ahead, they would give up an operation that can end well."""
    async with groups(3, threaded=True) as made:
        await asyncio.gather(*(group.barrier() for group in made))
        await made[0].close()
        with pytest.raises(PeerLost, match="rank 0"):
            await made[1].barrier()
        assert made.connection.told == [] and made[2].error is None


async def test_closing_with_something_on_its_way():
    async with groups(2) as made:
        a, b = made
        mine, more = a.barrier(), a.barrier()
        async with a:
            assert not a.closed
        for each in (mine, more):
            with pytest.raises(ContextClosed):
                await each
        with pytest.raises(PeerLost):
            await b.barrier()
        assert a.closed and made.seats[0].closed and not made.seats[1].closed
        await a.close()


async def test_closing_while_ranks_are_asked_where_they_are():
    async with groups(2) as made:
        a, _ = made
        asked = asyncio.Event()

        async def standings(group, deadline):
            asked.set()
            await asyncio.sleep(60)

        made.connection.standings = standings
        future = a.barrier(timeout=0.01)
        await asked.wait()
        await a.close()
        with pytest.raises(ContextClosed):
            await future


async def test_closing_just_before_ranks_are_asked_where_they_are():
    """The question is cancelled before it begins."""
    async with groups(2) as (a, _):
        explain = a._queue._explain

        def explain_and_cancel(late, then):
            explain(late, then)
            for task in a._asking:
                task.cancel()

        a._queue._explain = explain_and_cancel
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(a.barrier(timeout=0.01), 5)


async def test_reports():
    async with groups(2) as (a, b):
        x = np.ones((2, 3), np.float32)
        await asyncio.gather(a.all_reduce(x.copy()), b.all_reduce(x.copy()))
        a.barrier().cancel()
        report = a.report()
        assert report.startswith("group 'g', generation 1, rank 0 of 2, table: in 2, barrier()")
        lines = report.splitlines()[2:]
        assert "done" in lines[0] and "all_reduce(float32 of shape (2, 3), SUM)" in lines[0]
        assert "running" in lines[1]
        assert len(a.report(last=1).splitlines()) == 3
        assert repr(a) == "<ProcessGroup 'g': rank 0 of 2, table>"
        await b.barrier()
