"""Rosters: spans of steps, and clear refusals."""

import pytest

from psframework.errors import Evicted, NotRegistered
from psframework.parameter_server.roster import VACANT, Entry, Roster

ROSTER = Roster(
    number=3,
    entries=(
        Entry(1, 12, 102, "trainer-1", 4),
        Entry(0, 11, 101, "trainer-0", 0, 6),
        Entry(0, VACANT, 0, "trainer-0", 6),
    ),
    readers=frozenset({13}),
)


@pytest.mark.parametrize(
    ("step", "writers"), [(0, [11]), (3, [11]), (4, [11, 12]), (5, [11, 12]), (6, [VACANT, 12])]
)
def test_active_entries_come_in_slot_order(step, writers):
    assert [entry.writer for entry in ROSTER.active(step)] == writers


def test_writers_are_open_trainers_and_readers():
    assert ROSTER.writers() == {12, 13}
    assert [entry.slot for entry in ROSTER.open_entries()] == [1, 0]
    assert ROSTER.find(VACANT) is None


def test_a_trainer_is_found_and_others_are_refused_with_a_reason():
    assert ROSTER.trainer(12, "job/net").name == "trainer-1"
    with pytest.raises(NotRegistered, match="reader"):
        ROSTER.trainer(13, "job/net")
    with pytest.raises(NotRegistered, match="'job/net'"):
        ROSTER.trainer(99, "job/net")
    with pytest.raises(Evicted, match="'trainer-0'"):
        ROSTER.trainer(11, "job/net")
