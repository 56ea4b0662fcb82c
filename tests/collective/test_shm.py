"""Collectives over shared memory, between real processes."""

import itertools
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from shm_crew import Crew, every

from psframework import backend
from psframework.collective.algorithms import reference
from psframework.collective.descriptor import ANY, Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.shm import SharedMemory, segment_bytes
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost
from psframework.wire.shm import Segment

REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
ROOTED = (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)
REST = (Operation.BARRIER, Operation.SEND, Operation.RECV, Operation.REFUSE)
LENGTHS = [0, 1, 5, 20_000, 300_001]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    made = Crew(7)
    yield made
    made.end()


def arrays(size: int, length: int, dtype: str) -> list[np.ndarray]:
    made = []
    for rank in range(size):
        values = np.random.default_rng(rank).normal(0, 3, length)
        kind = backend.dtype_from_name(dtype)
        made.append(values.astype(np.int64 if kind.kind in "iu" else np.float64).astype(kind))
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_all_reduce_is_bitwise_what_is_combined_in_rank_order(crew: Crew, size: int):
    ranks = crew.enter(size)
    for number, (length, dtype) in enumerate(
        [(n, d) for n in LENGTHS for d in ("float32", "bfloat16", "float16", "int64", "complex64")], 1
    ):
        sends = arrays(size, length, dtype)
        told = Descriptor(number, Operation.ALL_REDUCE, dtype, (length,), ReduceOp.SUM)
        expected = reference(told, dict(enumerate(sends)), size)[0]
        got = every(
            ranks, "run", [Operation.ALL_REDUCE] * size, sends, ["same"] * size, [ReduceOp.SUM] * size
        )
        for receive, _, error in got:
            assert error is None
            assert receive.tobytes() == expected.tobytes()


@pytest.mark.parametrize("operation", [each for each in Operation if each not in REST])
@pytest.mark.parametrize("size", [2, 3])
def test_each_operation_large_and_small(crew: Crew, operation: Operation, size: int):
    """All cases are in test_exchange; here they cross processes, one after the other, in one group."""
    ranks = crew.enter(size)
    root = 1 if operation in ROOTED else ANY
    op = ReduceOp.AVG if operation in REDUCING else None
    for number, length in enumerate((6, 300_000, 6 * 1024, 0), 1):
        sends = arrays(size, length, "float32")
        told = Descriptor(number, operation, "float32", (length,), op, root)
        expected = reference(told, dict(enumerate(sends)), size)
        for rank, member in enumerate(ranks):
            gives = operation not in (Operation.BROADCAST, Operation.SCATTER) or rank == root
            wanted = expected[rank]
            in_place = operation in (Operation.ALL_REDUCE, Operation.REDUCE) and wanted is not None
            receive = "same" if in_place else None if wanted is None else len(wanted)
            # Whoever takes the root's word has no array yet.
            opened = operation in (Operation.BROADCAST, Operation.SCATTER) and rank != root
            member.tell(
                "run", operation, sends[rank] if gives else None, None if opened else receive, op, root,
                opened=opened,
            )  # fmt: skip
        for rank, member in enumerate(ranks):
            receive, send, error = member.answer()
            assert error is None
            wanted = expected[rank]
            assert (receive is None) == (wanted is None)
            assert wanted is None or receive.tobytes() == wanted.tobytes()
            assert send is None or receive is send or send.tobytes() == sends[rank].tobytes()


def test_a_refusal_is_heard_by_all_and_the_group_lives_on(crew: Crew):
    ranks = crew.enter(3)
    for rank, member in enumerate(ranks):
        if rank == 1:
            member.tell("run", Operation.REFUSE, None, None, note="no gradient for weight")
        else:
            member.tell("run", Operation.ALL_REDUCE, np.ones(3), "same", ReduceOp.SUM)
    for member in ranks:
        _, _, error = member.answer()
        assert isinstance(error, CollectiveMismatch)
        assert "rank 1 (trainer-1): no gradient for weight" in str(error)
    assert every(ranks, "run", [Operation.BARRIER] * 3, [None] * 3, [None] * 3) == [(None, None, None)] * 3


def test_ranks_that_use_many_slots_and_ranks_that_use_few(crew: Crew):
    """Each rank times its copies and chooses for itself, maybe in the middle of what others do."""
    ranks = crew.enter(3)
    for number in range(1, 9):
        every(ranks, "choose", [bool(number >> rank & 1) for rank in range(3)])
        sends = arrays(3, 1_000_003, "float32")
        told = Descriptor(number, Operation.ALL_REDUCE, "float32", (1_000_003,), ReduceOp.SUM)
        expected = reference(told, dict(enumerate(sends)), 3)[0].tobytes()
        got = every(ranks, "run", [Operation.ALL_REDUCE] * 3, sends, ["same"] * 3, [ReduceOp.SUM] * 3)
        assert [(receive.tobytes() == expected, error) for receive, _, error in got] == [(True, None)] * 3


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_in_the_middle_keeps_nobody(sign: int):
    crew = Crew(3)
    try:
        ranks = crew.enter(3)
        for member in ranks:
            member.tell("begin", Operation.ALL_REDUCE, np.ones(16 << 20, np.float32), "same", ReduceOp.SUM)
        for member in ranks:
            member.answer()
        os.kill(ranks[1].process.pid, sign)
        ranks[0].tell("abort", PeerLost("rank 1 is gone", peer="trainer-1"))  # membership says so
        ranks[0].answer()
        for member in (ranks[0], ranks[2]):
            member.tell("result")
            _, _, error = member.answer()
            assert error is None or str(error) == "rank 1 is gone"  # some may have ended just before
            member.tell("run", Operation.BARRIER, None, None)
            assert str(member.answer()[2]) == "rank 1 is gone"
    finally:
        ranks[1].process.kill()
        crew.end()


def test_a_barrier_waits_for_the_last(crew: Crew):
    ranks = crew.enter(2)
    ranks[0].tell("begin", Operation.BARRIER, None, None)
    ranks[0].answer()
    ranks[0].tell("waits", 0.1)
    assert ranks[0].answer()
    assert every(ranks[1:], "run", [Operation.BARRIER], [None], [None]) == [(None, None, None)]
    assert every(ranks[:1], "result") == [(None, None, None)]


def test_a_mismatch_is_found_by_all_and_the_group_lives_on(crew: Crew):
    ranks = crew.enter(3)
    sends = [np.ones(4), np.ones(4), np.ones(5)]
    got = every(ranks, "run", [Operation.ALL_REDUCE] * 3, sends, ["same"] * 3, [ReduceOp.SUM] * 3)
    for _, send, error in got:
        assert isinstance(error, CollectiveMismatch)
        assert "rank 2 (trainer-2)" in str(error)
        assert (send == 1).all()
    sends[2] = np.ones(4)
    got = every(ranks, "run", [Operation.ALL_REDUCE] * 3, sends, ["same"] * 3, [ReduceOp.SUM] * 3)
    assert [(receive.tolist(), error) for receive, _, error in got] == [([3.0] * 4, None)] * 3


def test_a_deadline_names_who_is_missing_and_ends_the_group(crew: Crew):
    ranks = crew.enter(2)
    assert every(ranks, "run", [Operation.BARRIER] * 2, [None] * 2, [None] * 2) == [(None, None, None)] * 2
    ranks[0].tell("run", Operation.BARRIER, None, None, seconds=0.2)
    _, _, error = ranks[0].answer()
    assert isinstance(error, DeadlineExceeded)
    assert "rank 1 (trainer-1), whose last completed operation is 1" in str(error)
    for _ in range(2):  # the straggler hears of it, and it stays so
        for _, _, later in every(ranks, "run", [Operation.BARRIER] * 2, [None] * 2, [None] * 2):
            assert isinstance(later, DeadlineExceeded)
            assert str(later) == str(error)


def test_an_abort_wakes_everybody(crew: Crew):
    ranks = crew.enter(3)
    for member in ranks[:2]:
        member.tell("begin", Operation.BARRIER, None, None, seconds=30)
        member.answer()
    ranks[2].tell("abort", PeerLost("rank 1 is gone", peer="trainer-1", reason="lease"))
    ranks[2].answer()
    for member in ranks[:2]:
        member.tell("result", 1.0)
        _, _, error = member.answer()
        assert isinstance(error, PeerLost)
        assert (str(error), error.peer, error.reason) == ("rank 1 is gone", "trainer-1", "lease")


def test_closing_ends_the_group_for_all_and_leaves_neither_thread_nor_memory(crew: Crew):
    ranks = crew.enter(2)
    ranks[0].tell("begin", Operation.BARRIER, None, None, seconds=30)
    ranks[0].answer()
    assert every(ranks[1:], "close") == [[]]
    _, _, error = every(ranks[:1], "result")[0]
    assert isinstance(error, PeerLost)
    assert error.peer == "trainer-1"
    assert every(ranks[:1], "close") == [[]]


def test_what_starts_after_closing_fails(crew: Crew):
    ranks = crew.enter(2)
    assert every(ranks, "close") == [[], []]
    for _, _, error in every(ranks, "run", [Operation.BARRIER] * 2, [None] * 2, [None] * 2):
        assert isinstance(error, PeerLost)


@pytest.mark.parametrize("cores", [1, 2])
def test_who_waits_keeps_the_calling_thread_for_20_microseconds(cores: int, monkeypatch: pytest.MonkeyPatch):
    """It may be the loop's; not even that where ranks exceed cores. A look at the clock takes 1 us here."""
    yields: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    rank = SharedMemory(0, 2, Segment.create(segment_bytes(2)), {0: "a", 1: "b"}, cores)
    looks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(looks) * 1e-6)
    assert not rank._soon()
    assert next(looks) in ((21, 22) if cores == 2 else (0,))
    assert not yields
