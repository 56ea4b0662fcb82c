"""Cutting arrays into blocks, and running blocks on several threads."""

import multiprocessing
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import ArgumentError
from psframework.optim.blocks import (
    Scratch,
    blocks,
    run_blocks,
    scratch_for,
    set_update_threads,
    update_threads,
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = update_threads()
    yield
    set_update_threads(before)


@given(shape=st.lists(st.integers(0, 9), max_size=4), block=st.integers(1, 100))
def test_blocks_cover_every_element_once(shape: list[int], block: int) -> None:
    counts = np.zeros(shape, np.int64)
    for cut in blocks(tuple(shape), block):
        assert counts[cut].size <= block
        counts[cut] += 1
    assert (counts == 1).all()


def test_scratch_is_kept_for_each_slot_and_thread() -> None:
    scratch, array = Scratch(), np.zeros((3, 4), np.float32)
    first = scratch.like(array, 0)
    assert first.shape == array.shape and first.dtype == array.dtype
    assert scratch.like(array, 0) is first
    assert not np.shares_memory(scratch.like(array, 1), first)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(scratch.like(array, 0)))
    thread.start()
    thread.join(10)
    assert not np.shares_memory(elsewhere[0], first)


def test_scratch_views_are_bounded() -> None:
    scratch = Scratch()
    for n in range(5000):
        scratch.like(np.empty(n, np.int8), 0)
    assert len(scratch._views) <= 1024


def test_numpy_arrays_use_the_threads_scratch() -> None:
    assert scratch_for(np.zeros(1)) is scratch_for(np.zeros(2))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_block_runs_once(threads: int) -> None:
    set_update_threads(threads)
    done: list[int] = []
    run_blocks(done.append, 100)
    assert sorted(done) == list(range(100))


def test_a_helper_thread_takes_part() -> None:
    set_update_threads(2)
    both = threading.Barrier(2)
    seen = set()

    def work(index: int) -> None:
        if index < 2:
            both.wait(10)  # passes only if two threads are in here at once
        seen.add(threading.get_ident())

    run_blocks(work, 16)
    assert len(seen) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_block_arrives(threads: int) -> None:
    set_update_threads(threads)

    def work(index: int) -> None:
        if index == 7:
            raise FloatingPointError("seven")

    with pytest.raises(FloatingPointError, match="seven"):
        run_blocks(work, 16)


def test_errstate_of_the_caller_holds_in_helpers() -> None:
    set_update_threads(2)
    both = threading.Barrier(2)
    states = []

    def work(index: int) -> None:
        if index < 2:
            both.wait(10)
        states.append(np.geterr()["over"])

    with np.errstate(over="raise"):
        run_blocks(work, 16)
    assert set(states) == {"raise"}


def _work_after_fork() -> None:
    done: list[int] = []
    run_blocks(done.append, 100)
    assert sorted(done) == list(range(100))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_starts_its_own_threads() -> None:
    set_update_threads(2)
    run_blocks(lambda index: None, 100)
    child = multiprocessing.get_context("fork").Process(target=_work_after_fork)
    child.start()
    child.join(30)
    assert child.exitcode == 0


def test_thread_count_must_be_positive() -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        set_update_threads(0)
    set_update_threads(3)
    assert update_threads() == 3
