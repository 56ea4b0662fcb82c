"""What gates of all policies do: rosters by number, fences, pauses."""

import pytest

from psframework.errors import Evicted, NotRegistered, StaleTerm
from psframework.parameter_server.clocks import Clocks, gate_for
from psframework.parameter_server.gate import Gate
from psframework.parameter_server.policy import ASP, BSP, SSP
from psframework.parameter_server.roster import Entry, Roster
from psframework.parameter_server.rounds import Rounds

A, B = Entry(0, 10, 1, "a"), Entry(1, 11, 2, "b")


@pytest.fixture(params=[ASP(), BSP(), SSP(1)], ids=lambda policy: policy.name)
def gate(request) -> Gate:
    made = gate_for(request.param, "job/net")
    assert made.publish(Roster(number=5, entries=(A, B), readers=frozenset({50}), ready=True))
    return made


def test_each_policy_has_its_gate():
    assert isinstance(gate_for(BSP(), "t"), Rounds)
    assert isinstance(gate_for(SSP(), "t"), Clocks)
    assert isinstance(gate_for(ASP(), "t"), Clocks)


def test_lower_rosters_are_refused_and_equal_ones_repeated(gate):
    with pytest.raises(StaleTerm, match="5 is known"):
        gate.publish(Roster(number=4))
    assert gate.publish(Roster(number=5))
    assert gate.roster.entries == (A, B)


def test_a_fenced_writer_is_refused_at_once_and_by_every_call(gate):
    first = gate.fence(10)
    assert gate.fence(10) == first
    for call in (
        lambda: gate.admit(10, 0),
        lambda: gate.pushed(10, 0),
        lambda: gate.commit(10, 0),
        lambda: gate.released(10, 0),
    ):
        with pytest.raises(Evicted, match="'a'"):
            call()
    assert gate.released(11, 0)


def test_fencing_a_stranger_says_that_nothing_is_complete(gate):
    assert gate.fence(999) == 0


def test_strangers_are_refused_and_readers_pull(gate):
    assert gate.released(50, 10_000)
    with pytest.raises(NotRegistered):
        gate.released(999, 0)


def test_a_pause_ends_by_time_or_by_the_next_roster(gate):
    gate.pause(until=3.0)
    assert gate.paused(2.0)
    assert not gate.paused(3.0)
    assert gate.publish(Roster(number=6, entries=(A, B), ready=True))
    assert not gate.paused(2.0)
