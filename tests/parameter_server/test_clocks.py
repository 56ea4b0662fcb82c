"""SSP holds back whoever is too far ahead; ASP nobody; the dead hold back nobody."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.parameter_server.clocks import Clocks
from psframework.parameter_server.gate import Verdict
from psframework.parameter_server.roster import Entry, Roster

ENTRIES = tuple(Entry(slot, 10 + slot, slot, f"t{slot}") for slot in range(3))


def clocks(staleness: int | None) -> Clocks:
    made = Clocks("job/net", staleness)
    made.publish(Roster(number=1, entries=ENTRIES, ready=True))
    return made


@given(
    staleness=st.integers(0, 3),
    moves=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60),
)
def test_nobody_gets_further_ahead_than_the_bound(staleness, moves):
    gate, step = clocks(staleness), [0, 0, 0]
    for slot, repeat in moves:
        writer = 10 + slot
        if not gate.released(writer, step[slot]):
            assert step[slot] - min(step) > staleness
            continue
        assert step[slot] - min(step) <= staleness
        assert gate.admit(writer, step[slot]).verdict is Verdict.APPLY
        gate.pushed(writer, step[slot])
        if repeat:
            gate.pushed(writer, step[slot])
        step[slot] += 1
    assert gate.next_step == min(step)


def test_asp_never_waits():
    gate = clocks(None)
    gate.pushed(10, 500)
    assert gate.released(10, 501)


def test_the_dead_hold_back_nobody():
    gate = clocks(1)
    for step in range(3):
        gate.pushed(10, step)
        gate.pushed(11, step)
    assert not gate.released(10, 3)
    assert "waits for t2, which has done 0 steps" in gate.waiting()
    assert gate.fence(12) == 0
    gone = dataclasses.replace(ENTRIES[2], until_step=0)
    gate.publish(Roster(number=2, entries=(*ENTRIES[:2], gone), ready=True))
    assert gate.released(10, 3)


def test_a_newcomer_starts_at_the_slowest_clock():
    gate = clocks(0)
    for writer in (10, 11, 12):
        gate.pushed(writer, 0)
    start = gate.pause(until=1)
    assert start == 1
    gate.publish(Roster(number=2, entries=(*ENTRIES, Entry(3, 13, 9, "late", start)), ready=True))
    assert gate.next_step == 1
    assert gate.released(13, 1)


def test_with_everybody_gone_the_clock_stands():
    gate = clocks(2)
    for entry in ENTRIES:
        gate.pushed(entry.writer, 4)
    gate.publish(Roster(number=2, entries=tuple(dataclasses.replace(e, until_step=5) for e in ENTRIES)))
    assert gate.next_step == 5
    with pytest.raises(Exception, match="only below step 5"):
        gate.pushed(10, 5)
