"""Collectives over shared memory, between real processes."""

from collections.abc import Iterator

import numpy as np
import pytest
from shm_crew import Crew, every

from psframework import backend
from psframework.collective.algorithms import reference
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost

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


def test_closing_ends_the_group_for_all_and_leaves_no_thread(crew: Crew):
    ranks = crew.enter(2)
    ranks[0].tell("begin", Operation.BARRIER, None, None, seconds=30)
    ranks[0].answer()
    assert every(ranks[1:], "close") == [[]]
    _, _, error = every(ranks[:1], "result")[0]
    assert isinstance(error, PeerLost)
    assert error.peer == "trainer-1"
    assert every(ranks[:1], "close") == [[]]
