"""A partition applies each push once, whatever is repeated or reordered within the window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psframework.errors import ArgumentError
from psframework.parameter_server.dedupe import WINDOW, Dedupe, Outcome


class Repetitions(RuleBasedStateMachine):
    """Three writers push, repeat and overtake; the sum must be that of the distinct pushes."""

    def __init__(self) -> None:
        super().__init__()
        self.dedupe = Dedupe()
        self.applied: dict[tuple[int, int], Outcome] = {}
        self.sent = {1: 0, 2: 0, 3: 0}

    def arrive(self, writer: int, sequence: int, outcome: Outcome) -> None:
        seen = self.dedupe.seen(writer, sequence)
        known = self.applied.get((writer, sequence))
        assert (seen is None) == (known is None)
        if seen is None:
            self.dedupe.record(writer, sequence, outcome)
            self.applied[writer, sequence] = outcome
        elif sequence > self.dedupe.through(writer) - WINDOW:
            assert seen is known

    @rule(writer=st.sampled_from([1, 2, 3]), outcome=st.sampled_from([Outcome.APPLIED, Outcome.DROPPED]))
    def push(self, writer: int, outcome: Outcome) -> None:
        self.sent[writer] += 1
        self.arrive(writer, self.sent[writer], outcome)

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from([w for w, n in self.sent.items() if n]))
        self.arrive(writer, data.draw(st.integers(1, self.sent[writer])), Outcome.APPLIED)

    @rule(writer=st.sampled_from([1, 2, 3]), ahead=st.integers(1, 8))
    def overtake(self, writer: int, ahead: int) -> None:
        if self.sent[writer] + ahead <= self.dedupe.through(writer) + WINDOW:
            self.sent[writer] += ahead
            self.arrive(writer, self.sent[writer], Outcome.APPLIED)

    @invariant()
    def everything_through_is_done(self) -> None:
        for writer in self.sent:
            through = self.dedupe.through(writer)
            assert all((writer, n) in self.applied for n in range(1, through + 1))
            assert (writer, through + 1) not in self.applied


TestRepetitions = Repetitions.TestCase
TestRepetitions.settings = TestRepetitions.settings.__class__(
    max_examples=30, stateful_step_count=40, deadline=None
)


@given(st.permutations(range(1, 21)))
def test_any_order_within_the_window_ends_the_same(order):
    dedupe = Dedupe()
    for number in order:
        assert dedupe.seen(7, number) is None
        dedupe.record(7, number, Outcome.APPLIED)
    assert dedupe.through(7) == 20


def test_memory_is_bounded_and_old_repetitions_are_still_known():
    dedupe = Dedupe()
    for number in range(1, 10_001):
        dedupe.record(1, number, Outcome.DROPPED)
    assert dedupe.seen(1, 10_000) is Outcome.DROPPED
    assert dedupe.seen(1, 1) is Outcome.APPLIED
    assert len(dedupe._done[1]) == WINDOW


def test_a_number_far_ahead_is_refused():
    with pytest.raises(ArgumentError, match="more than 64 ahead"):
        Dedupe().seen(1, WINDOW + 1)


def test_recording_twice_is_refused():
    dedupe = Dedupe()
    dedupe.record(1, 1, Outcome.APPLIED)
    with pytest.raises(ArgumentError, match="twice"):
        dedupe.record(1, 1, Outcome.APPLIED)


def test_fenced_writers_are_forgotten():
    dedupe = Dedupe()
    dedupe.record(1, 1, Outcome.APPLIED)
    dedupe.record(2, 1, Outcome.APPLIED)
    dedupe.keep([2])
    assert dedupe.through(1) == 0
    assert dedupe.through(2) == 1
