"""States that are kept: never more than is needed, never one that is taken for another."""

import pytest

from psframework.errors import NotRegistered
from psframework.pipeline.commits import Commits, State


def state(number: int) -> State:
    return {0: {"number": number}}


def test_the_newest_complete_one_and_the_one_that_is_being_made() -> None:
    commits = Commits()
    for number in (0, 3, 4, 9):
        commits.add(number, commits.numbers[-1] if commits.numbers else 0, state(number))
        assert commits[number] == state(number)
    assert tuple(commits.numbers) == (4, 9)


def test_one_that_is_not_here() -> None:
    commits = Commits()
    commits.add(0, 0, state(0))
    with pytest.raises(NotRegistered, match=r"no commit 7, but \(0,\)"):
        commits[7]


def test_those_that_were_left_half_made_go() -> None:
    """However many steps fail: one commit, and the newest attempt."""
    commits = Commits()
    commits.add(5, 5, state(5))
    for number in range(6, 20):
        commits.add(number, 5, state(number))
        assert tuple(commits.numbers) == (5, number)
    commits.add(20, 19, state(20))
    assert tuple(commits.numbers) == (19, 20)


def test_one_that_comes_late_spoils_nothing() -> None:
    """It was on its way when its run was given up."""
    commits = Commits()
    commits.add(5, 5, state(5))
    commits.add(8, 5, state(8))
    commits.add(6, 5, state(6))
    assert commits[5] == state(5) and commits[8] == state(8)
    commits.add(9, 8, state(9))
    assert tuple(commits.numbers) == (8, 9)
    commits.add(7, 5, state(7))
    assert tuple(commits.numbers) == (8, 9)


def test_a_newcomer_is_told_again_what_all_have() -> None:
    """Also if something of a run that was given up came to it first."""
    commits = Commits()
    commits.add(6, 5, state(6))
    commits.add(5, 5, state(5))
    assert commits[5] == state(5)


def test_all_have_one() -> None:
    commits = Commits()
    commits.add(5, 5, state(5))
    commits.add(8, 5, state(8))
    commits.forget_before(5)
    assert tuple(commits.numbers) == (5, 8)
    commits.forget_before(8)
    assert tuple(commits.numbers) == (8,)
    commits.add(6, 5, state(6))
    assert tuple(commits.numbers) == (8,)


def test_going_back() -> None:
    commits = Commits()
    commits.add(5, 5, state(5))
    commits.add(8, 5, state(8))
    commits.keep_only(5)
    assert tuple(commits.numbers) == (5,)
    with pytest.raises(NotRegistered):
        commits.keep_only(8)
    assert tuple(commits.numbers) == (5,)
    commits.clear()
    assert tuple(commits.numbers) == ()
