"""What is done again after a failure, and when commits are due."""

import pytest

from psframework.errors import ArgumentError
from psframework.pipeline.history import History
from psframework.pipeline.microbatch import MicroBatches

BATCH = MicroBatches([], [], [])


def trained(history: History, run: int, update: bool = True) -> bool:
    """A batch; whether it was to be committed."""
    done = history.place(BATCH, update)
    due = history.commits(done)
    history.add(done, run)
    return due


def test_a_commit_after_each_step_leaves_nothing_to_do_again() -> None:
    history = History()
    for number in range(1, 4):
        assert trained(history, 10 * number)
        assert (history.steps, history.commit, history.steps_at_commit) == (number, 10 * number, number)
        assert history.since_commit == ()


def test_a_commit_after_every_third_step() -> None:
    history = History(3)
    assert [trained(history, run) for run in range(1, 8)] == [False, False, True, False, False, True, False]
    assert (history.steps, history.commit, history.steps_at_commit) == (7, 6, 6)
    (done,) = history.since_commit
    assert done.step == 6 and done.update and done.fresh


def test_what_is_done_again_is_what_was_done() -> None:
    history = History(4)
    updates = [False, False, True, True, False]
    for run, update in enumerate(updates, 1):
        trained(history, run, update)
    done = history.since_commit
    assert [each.update for each in done] == updates
    assert [each.step for each in done] == [0, 0, 0, 1, 2]
    assert [each.fresh for each in done] == [True, False, False, True, True]
    assert [each.earlier for each in done] == [0, 1, 2, 0, 0]
    assert history.steps == 2 and history.commit == 0


def test_gradients_alone_are_never_committed() -> None:
    """A commit holds no gradients: those before it would be lost."""
    history = History()
    assert not any(trained(history, run, update=False) for run in range(1, 6))
    assert trained(history, 6)
    assert history.since_commit == () and history.place(BATCH, True).fresh


def test_a_batch_that_failed_was_not() -> None:
    history = History(2)
    trained(history, 1, update=False)
    first = history.place(BATCH, True)
    assert history.place(BATCH, True) == first and first.step == 0 and not first.fresh
    assert len(history.since_commit) == 1 and history.steps == 0


def test_a_commit_between_steps() -> None:
    """As after a state was loaded: gradients that were there are forgotten, and steps count from here."""
    history = History(3)
    trained(history, 1)
    trained(history, 2, update=False)
    history.committed(7)
    assert (history.steps, history.commit, history.steps_at_commit) == (1, 7, 1)
    assert history.since_commit == () and history.place(BATCH, True).fresh
    assert [trained(history, run) for run in (8, 9, 10)] == [False, False, True]


@pytest.mark.parametrize("every", [0, -1])
def test_commits_are_steps_apart(every: int) -> None:
    with pytest.raises(ArgumentError, match=f"commit_every={every}"):
        History(every)
