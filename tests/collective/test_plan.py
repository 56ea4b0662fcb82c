"""What is given and what is taken fit each other, on all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from collective import ROOTED, describe, prepare
from hypothesis import given
from hypothesis import strategies as st

from psframework.collective.descriptor import Operation
from psframework.collective.plan import (
    MOST_PARTS,
    SPREAD_BYTES,
    adds,
    chunks,
    gives,
    own,
    parts,
    spreads,
    takes,
)  # fmt: skip
from psframework.collective.work import Work
from psframework.errors import ArgumentError
from psframework.rpc.deadline import Deadline

COPYING = [
    Operation.BROADCAST, Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER, Operation.ALL_TO_ALL,
]  # fmt: skip


def works(operation: Operation, size: int, n: int, root: int = 0) -> list[Work]:
    made = []
    for rank in range(size):
        send = np.arange(n) + 100 * rank
        descriptor = describe(operation, send, root=root)
        made.append(prepare(descriptor, rank, size, send, Deadline.NEVER))
    return made


@pytest.mark.parametrize("operation", COPYING)
@given(size=st.integers(2, 6), rows=st.integers(0, 5), data=st.data())
def test_each_takes_what_it_is_given(operation: Operation, size: int, rows: int, data: st.DataObject) -> None:
    all_works = works(operation, size, rows * size, data.draw(st.integers(0, size - 1)))
    for rank, work in enumerate(all_works):
        for source, target in takes(work, rank, size).items():
            piece = own(work, rank, size) if source == rank else gives(all_works[source], source, size)[rank]
            assert len(piece) == len(target)
    given_away = {(a, b) for a, work in enumerate(all_works) for b in gives(work, a, size)}
    taken = {(a, b) for b, work in enumerate(all_works) for a in takes(work, b, size) if a != b}
    assert given_away == taken


@pytest.mark.parametrize(
    ("size", "n"), [(3, SPREAD_BYTES // 8), (2, SPREAD_BYTES), (3, SPREAD_BYTES // 8 - 1)]
)
def test_a_large_broadcast_among_more_than_two_gives_each_a_part(size: int, n: int) -> None:
    all_works = works(Operation.BROADCAST, size, n, root=1)
    large = size > 2 and n * 8 >= SPREAD_BYTES
    assert [spreads(work, size) for work in all_works] == [large] * size
    lengths = {rank: len(piece) for rank, piece in gives(all_works[1], 1, size).items()}
    if large:
        assert n / size - 1 < min(lengths.values()) <= max(lengths.values()) < n / size + 1
    else:
        assert set(lengths.values()) == {n}
    assert gives(all_works[0], 0, size) == {}


@pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_adds_pieces_as_long_as_its_own(operation: Operation, size: int) -> None:
    all_works = works(operation, size, 4 * size, root=1)
    adding = {rank: adds(work, rank, size) for rank, work in enumerate(all_works)}
    assert [rank for rank, total in adding.items() if total] == (
        [1] if operation is Operation.REDUCE else list(range(size))
    )
    for rank, total in adding.items():
        for source in range(size):
            piece = gives(all_works[source], source, size).get(rank)
            assert (piece is None) == (total is None or source == rank)
            assert piece is None or total is None or len(piece) == len(total.own) == len(total.into)


def test_parts_of_an_all_reduce_cover_the_array() -> None:
    for rank, work in enumerate(works(Operation.ALL_REDUCE, 3, 10)):
        total = adds(work, rank, 3)
        assert total is not None and work.receive is not None
        total.into[:] = -1
        for part in takes(work, rank, 3).values():
            part[:] = -1
        assert (work.receive == -1).all()


def test_in_one_round_each_gives_and_adds_everything() -> None:
    work = works(Operation.ALL_REDUCE, 3, 10)[2]
    assert {rank: len(array) for rank, array in gives(work, 2, 3, whole=True).items()} == {0: 10, 1: 10}
    total = adds(work, 2, 3, whole=True)
    assert total is not None and total.into is work.receive


@pytest.mark.parametrize("operation", sorted(set(ROOTED) - {Operation.REDUCE}))
def test_a_rank_without_an_array_gives_and_takes_nothing(operation: Operation) -> None:
    work = Work(describe(operation, np.zeros(4)), None, None, Deadline.NEVER, lambda work, error: None)
    assert gives(work, 1, 2) == {} and takes(work, 1, 2) == {} and adds(work, 1, 2) is None
    with pytest.raises(ArgumentError, match="needs an array"):
        own(work, 1, 2)


@given(st.integers(0, 300), st.integers(1, 100), st.sampled_from([np.int8, np.float16, np.float32]))
def test_letters_and_their_parts_cover_an_array_once(n: int, nbytes: int, dtype: type) -> None:
    array = (np.arange(n) % 100).astype(dtype)
    cuts = list(chunks(array, nbytes))
    pieces = [part for cut in cuts for part in parts(array[cut], nbytes)]
    assert len(cuts) >= 1
    assert np.concatenate(pieces).tolist() == array.tolist()
    assert all(part.nbytes <= max(4, nbytes) for part in pieces)
    assert all(len(parts(array[cut], nbytes)) <= MOST_PARTS for cut in cuts)


def test_what_is_rounded_later_has_parts_as_long_as_what_it_is_added_to() -> None:
    wide, narrow = np.zeros(10 << 20, np.float32), np.zeros(10 << 20, np.float16)
    assert [len(part) for part in parts(wide)] == [len(part) for part in parts(narrow)]


def test_large_arrays_are_fewer_letters() -> None:
    sizes = {mib: len(list(chunks(np.empty(mib << 20, np.uint8), 1 << 20))) for mib in (0, 1, 2, 8, 16, 128)}
    assert sizes == {0: 1, 1: 4, 2: 8, 8: 16, 16: 16, 128: 128}
