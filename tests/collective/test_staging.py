"""Slots in turn, and chunks."""

import numpy as np
import pytest

from psframework.collective.staging import TURNS, Cut, Staging, even, whole


def numbered(size: int, count: int) -> list[list[np.ndarray]]:
    return [[np.full(8, 16 * rank + slot, np.uint8) for slot in range(count)] for rank in range(size)]


@pytest.mark.parametrize("far", [False, True])
def test_a_slot_comes_back_after_all_others_of_its_kind(far: bool):
    count = TURNS + 6
    kind = set(range(TURNS, count)) if far else set(range(TURNS))
    found = []
    for step in range(3 * len(kind)):  # each operation one round long, so steps and rounds count alike
        staging = Staging(1, 2, numbered(2, count), step, [not far, far])
        found.append(int(staging.bytes(1, 0, 0, 1)[0]) - 16)
        assert (int(staging.bytes(0, 0, 0, 1)[0]) < TURNS) == far  # each rank as it chose
    for start in range(len(found) - len(kind)):
        assert set(found[start : start + len(kind)]) == kind


def test_rounds_of_one_operation_go_on_where_the_last_one_ended():
    slots = numbered(1, 2 * TURNS)
    first, second = (Staging(0, 1, slots, step, [False]) for step in (5, 7))
    assert first.bytes(0, 2, 0, 8) is not None
    assert np.shares_memory(first.bytes(0, 2, 0, 8), second.bytes(0, 0, 0, 8))


def test_elements_are_a_view_of_the_slot():
    staging = Staging(0, 1, numbered(1, 2 * TURNS), 0, [False])
    flat = staging.flat(0, 0, slice(1, 3), np.dtype("int16"))
    flat[:] = 0x0101
    assert staging.bytes(0, 0, 0, 8).tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("total", "most", "lengths"),
    [(0, 4, [0]), (3, 4, [3]), (8, 4, [4, 4]), (9, 4, [4, 4, 1]), (2, 0, [1, 1])],
)
def test_chunks_cover_everything_once(total: int, most: int, lengths: list[int]):
    cut = Cut(total, most)
    chunks = [range(total)[cut(turn)] for turn in range(cut.rounds)]
    assert [len(each) for each in chunks] == lengths
    assert [i for each in chunks for i in each] == list(range(total))


def test_what_lies_behind_starts_at_a_cache_line():
    assert [even(count) for count in (0, 63, 64, 65, 200)] == [0, 63, 64, 64, 192]


def test_bytes_of_any_dtype():
    assert len(whole(None)) == 0
    assert len(whole(np.zeros(3, np.complex128))) == 48
