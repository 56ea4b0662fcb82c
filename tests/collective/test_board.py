"""The control lines: arrivals across the wrap of 32 bits, announcements by parity, aborts."""

import threading
import time

import pytest

from psframework.collective.board import LINE_BYTES, MAX_NOTE, Board
from psframework.wire.shm import Segment


@pytest.fixture
def boards() -> list[Board]:
    segment = Segment.create(3 * LINE_BYTES)
    return [Board(segment, rank, 3) for rank in range(3)]


@pytest.mark.parametrize("step", [1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5])
def test_all_have_arrived_when_the_last_has(boards: list[Board], step: int):
    for board in boards:
        board.arrive(step - 1)
    assert all(board.arrived(step - 1) for board in boards)
    for board in boards:
        assert len(board.missing(step)) == 2
    boards[0].arrive(step)
    boards[1].arrive(step)
    assert not boards[0].arrived(step)
    assert boards[0].missing(step) == [2]
    assert boards[2].arrived(step)  # it does not wait for itself
    boards[2].arrive(step)
    assert all(board.arrived(step) for board in boards)


def test_a_rank_that_is_a_step_ahead_overwrites_nothing(boards: list[Board]):
    boards[0].announce(4, b"first", 11, False)
    boards[0].announce(5, b"second", 12, True)
    assert boards[1].announced(4, 0).startswith(b"first")
    assert boards[1].announced(5, 0).startswith(b"second")
    assert (boards[1].key(4, 0), boards[1].key(5, 0)) == (11, 12)
    assert (boards[1].far(4, 0), boards[1].far(5, 0)) == (False, True)
    assert not boards[1].announced(4, 2).strip(b"\0")


def test_completed_is_each_ranks_own(boards: list[Board]):
    boards[1].complete(2**40)
    assert [boards[0].completed(rank) for rank in range(3)] == [0, 2**40, 0]


def test_an_abort_is_seen_by_all_with_its_note(boards: list[Board]):
    assert all(board.aborted() is None for board in boards)
    boards[1].abort(b"why" * MAX_NOTE)
    assert all(board.aborted() == (1, (b"why" * MAX_NOTE)[:MAX_NOTE]) for board in boards)


@pytest.mark.parametrize("wake", [lambda board: board.arrive(1), lambda board: board.abort(b"")])
def test_a_sleeper_wakes_for_an_arrival_and_for_an_abort(boards: list[Board], wake):
    def sleeper() -> None:
        while boards[0].missing(1) == [1, 2] and boards[0].aborted() is None:
            boards[0].sleep(1, 30)

    thread = threading.Thread(target=sleeper)
    thread.start()
    time.sleep(0.05)  # so that it sleeps; the test passes for the wrong reason if it does not yet
    wake(boards[1])
    thread.join(10)
    assert not thread.is_alive()
