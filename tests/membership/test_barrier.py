"""Barriers: complete, late, broken by a death, entered again after a restart."""

import math

import pytest

from psframework.errors import ArgumentError, Evicted, PeerLost, RendezvousTimeout
from psframework.membership.barrier import REMEMBERED, BarrierTable, Entry, Outcome
from psframework.membership.lease import Reason
from psframework.membership.view import Member, MemberState

A, B, C = (Member(name, "trainer", "job", number) for number, name in enumerate("abc", 1))


def enter(table: BarrierTable, member: Member, count: int = 2, number: int = 1, deadline: float = math.inf):
    return table.enter("start", count, Entry(member, number, deadline), 0.0)


def errors(outcomes: list[Outcome]) -> dict[int, Exception | None]:
    return {outcome.incarnation: outcome.error for outcome in outcomes}


def test_completes_with_names_in_the_order_of_coming() -> None:
    table = BarrierTable()
    assert enter(table, B) == ([], None)
    outcomes, change = enter(table, A)
    assert outcomes == [Outcome(2, 1, ("b", "a")), Outcome(1, 1, ("b", "a"))]
    assert change is not None and change.writes[0].key == "barrier/job/start"
    assert enter(table, B, number=2) == ([], None)  # the next round of the same name


def test_alone() -> None:
    outcomes, _ = enter(BarrierTable(), A, count=1)
    assert outcomes == [Outcome(1, 1, ("a",))]


def test_jobs_have_their_own() -> None:
    table = BarrierTable()
    enter(table, A)
    outcomes, _ = enter(table, Member("x", "trainer", "other", 9))
    assert outcomes == []


def test_late_ones_hear_who_came_and_who_is_missing() -> None:
    table = BarrierTable()
    enter(table, A, count=3, deadline=5.0)
    enter(table, B, count=3, deadline=9.0)
    assert table.tick([A, B, C], 4.9) == []
    (outcome,) = table.tick([A, B, C, Member("ps", "parameter-server", "", 8)], 5.0)
    assert outcome.incarnation == 1 and isinstance(outcome.error, RendezvousTimeout)
    assert outcome.error.missing == ("c",)
    assert str(outcome.error) == "barrier 'start': 2 of 3 came in time (a, b); of job 'job', missing: c"
    (outcome,) = table.tick([B], 9.0)
    assert "1 of 3 came in time (b)" in str(outcome.error) and "nobody else is a member" in str(outcome.error)
    assert table.tick([A, B, C], 100.0) == []


def test_who_gave_up_no_longer_counts() -> None:
    table = BarrierTable()
    enter(table, A, deadline=5.0)
    table.tick([A], 5.0)
    assert enter(table, B) == ([], None)


def test_a_death_fails_the_others_by_name() -> None:
    table = BarrierTable()
    for member in (A, B, C):
        enter(table, member, count=4)
    failed = errors(table.gone(B, Reason.CLOSED))
    assert isinstance(failed.pop(2), Evicted)
    assert set(failed) == {1, 3}
    for error in failed.values():
        assert isinstance(error, PeerLost) and error.peer == "b" and error.reason == "closed"
        assert "b was lost" in str(error)
    assert enter(table, A, count=2, number=2) == ([], None)


def test_a_broken_call_neither_counts_nor_is_forgotten() -> None:
    table = BarrierTable()
    enter(table, A)
    table.detach(1, 1)
    assert enter(table, B) == ([], None)  # `a` may be dead
    assert isinstance(errors(table.gone(A, Reason.CLOSED))[2], PeerLost)


def test_a_broken_call_that_comes_again_counts() -> None:
    table = BarrierTable()
    enter(table, A)
    table.detach(1, 1)
    enter(table, B)
    outcomes, _ = enter(table, A)
    assert sorted(outcome.incarnation for outcome in outcomes) == [1, 2]


def test_who_cancelled_and_left_harms_nobody() -> None:
    table = BarrierTable()
    enter(table, A)
    table.detach(1, 1)
    enter(table, B)
    assert 2 not in errors(table.gone(A, Reason.LEFT))


def test_detached_entries_end_with_their_deadline() -> None:
    table = BarrierTable()
    enter(table, A, count=3, deadline=5.0)
    table.detach(1, 1)
    table.tick([A], 5.0)
    assert errors(table.gone(A, Reason.CLOSED)) == {}


def test_another_count_is_refused() -> None:
    table = BarrierTable()
    enter(table, A, count=3)
    with pytest.raises(ArgumentError, match="you wait for 2 members, but a for 3"):
        enter(table, B, count=2)
    table.detach(1, 1)
    enter(table, B, count=2)


@pytest.mark.parametrize(("name", "count"), [("", 1), ("a b", 1), ("x", 0)])
def test_refused(name: str, count: int) -> None:
    with pytest.raises(ArgumentError):
        BarrierTable().enter(name, count, Entry(A, 1, math.inf), 0.0)


def test_entered_twice_by_one_process() -> None:
    table = BarrierTable()
    enter(table, A, number=1)
    outcomes, _ = enter(table, A, number=2)
    assert isinstance(errors(outcomes)[1], ArgumentError)
    outcomes, _ = enter(table, B)
    assert {outcome.number for outcome in outcomes if outcome.incarnation == 1} == {2}


def test_who_did_not_hear_it_is_let_through_when_it_asks_again() -> None:
    table = BarrierTable()
    enter(table, A)
    _, change = enter(table, B)
    assert change is not None
    restarted = BarrierTable()
    restarted.load([(write.key, write.value or b"") for write in change.writes], 100.0)
    assert enter(restarted, A) == ([Outcome(1, 1, ("a", "b"))], None)
    assert enter(restarted, A, number=2) == ([], None)
    assert restarted.forget(100.0 + REMEMBERED - 1) is None
    forgotten = restarted.forget(100.0 + REMEMBERED)
    assert forgotten is not None and [(w.key, w.value) for w in forgotten.writes] == [
        ("barrier/job/start", None)
    ]
    assert enter(restarted, B)[0] != [Outcome(2, 1, ("a", "b"))]


def test_waiting_for_a_stalled_member_fails() -> None:
    table = BarrierTable()
    enter(table, A)
    stalled = Member("b", "trainer", "job", 2, state=MemberState.STALLED)
    assert table.tick([A, stalled, C], 0.0) == []  # `c` may still come
    (outcome,) = table.tick([A, stalled], 0.0)
    assert (
        isinstance(outcome.error, PeerLost)
        and outcome.error.reason == "stalled"
        and outcome.error.peer == "b"
    )
