"""The owner's table: who refers to what, whatever order messages come in."""

import pytest

from psframework.errors import PsfError, WireError
from psframework.rref.holds import Incoming
from psframework.rref.ids import ForkId, HoldId, Incarnations, RRefId
from psframework.rref.messages import (
    Admitted,
    Break,
    Delete,
    Deleted,
    Ready,
    Refused,
    Register,
    Registered,
    Rejected,
    Release,
    Seen,
    Send,
)
from psframework.rref.owner import OwnerState

USER, OTHER = 2, 3
RREF = RRefId(USER, 1)
FORK, CHILD = ForkId(USER, 1), ForkId(OTHER, 1)
REGISTER = Register(CHILD, RREF, FORK, HoldId(USER, 1))


@pytest.fixture
def owner() -> OwnerState:
    return OwnerState(Incarnations(), Incoming())


def test_a_value_lives_while_a_fork_does(owner: OwnerState) -> None:
    entry, _ = owner.create(RREF, FORK)
    assert entry is not None
    assert owner.finish(entry, "value") == [Ready(RREF)]
    assert owner.finish(entry, "another") == []
    assert owner.register(REGISTER) == [Send(OTHER, Registered(CHILD)), Seen(CHILD)]
    assert owner.delete(Delete(FORK)) == [Send(USER, Deleted(FORK))]
    assert entry.value == "value"
    assert owner.delete(Delete(CHILD)) == [Send(OTHER, Deleted(CHILD)), Release(RREF)]
    assert owner.find(RREF) is None
    assert owner.tombstones == 0


def test_a_child_waits_for_its_parent(owner: OwnerState) -> None:
    assert owner.register(REGISTER) == []
    assert owner.register(REGISTER) == []
    assert owner.waiting == 1
    _, actions = owner.create(RREF, FORK)
    assert actions == [Seen(FORK), Send(OTHER, Registered(CHILD)), Seen(CHILD)]
    assert owner.waiting == 0


def test_a_child_of_the_dead_is_refused(owner: OwnerState) -> None:
    owner.register(REGISTER)
    owner._fenced.add(USER)
    assert owner.lost(USER) == [Seen(FORK), Send(OTHER, Refused(CHILD)), Seen(CHILD)]
    assert owner.register(REGISTER) == [Send(OTHER, Refused(CHILD))]  # the answer was lost


def test_a_late_registration_revives_nothing(owner: OwnerState) -> None:
    owner.create(RREF, FORK)
    second = ForkId(OTHER, 2)
    assert owner.delete(Delete(second)) == [Send(OTHER, Deleted(second)), Seen(second)]
    assert owner.tombstones == 1
    late = Register(second, RREF, FORK, HoldId(USER, 2))
    assert owner.register(late) == [Send(OTHER, Refused(second))]
    owner.register(REGISTER)
    assert owner.tombstones == 0  # every lower number has been seen
    assert owner.register(late) == [Send(OTHER, Refused(second))]


def test_repetitions_change_nothing(owner: OwnerState) -> None:
    owner.create(RREF, FORK)
    owner.register(REGISTER)
    for _ in range(3):
        assert owner.register(REGISTER) == [Send(OTHER, Registered(CHILD))]
    for _ in range(3):
        assert owner.delete(Delete(CHILD)) == [Send(OTHER, Deleted(CHILD))]
    entry = owner.find(RREF)
    assert entry is not None
    assert entry.forks == {FORK}


def test_a_broken_creation_is_an_error_for_all(owner: OwnerState) -> None:
    error = PsfError("never arrived")
    owner.register(REGISTER)
    assert owner.break_(Break(FORK, RREF, error)) == [
        Send(USER, Registered(FORK)),
        Ready(RREF),
        Seen(FORK),
        Send(OTHER, Registered(CHILD)),
        Seen(CHILD),
    ]
    entry = owner.find(RREF)
    assert entry is not None
    assert entry.error is error
    assert owner.create(RREF, FORK) == (None, [])  # it arrives after all


def test_a_break_does_not_harm_what_was_made(owner: OwnerState) -> None:
    entry, _ = owner.create(RREF, FORK)
    assert entry is not None
    owner.finish(entry, "value")
    assert owner.break_(Break(FORK, RREF, PsfError("late"))) == [Send(USER, Registered(FORK))]
    assert entry.error is None


def test_the_dead_hold_nothing_and_are_refused(owner: OwnerState) -> None:
    owner.create(RREF, FORK)
    owner._fenced.add(USER)
    assert owner.lost(USER) == [Release(RREF)]
    assert owner.create(RRefId(USER, 2), ForkId(USER, 3)) == (None, [])


def test_homecoming(owner: OwnerState) -> None:
    hold = HoldId(USER, 1)
    assert owner.arrive(RREF, FORK, hold) == []
    _, actions = owner.create(RREF, FORK)
    assert actions == [Seen(FORK), Admitted(hold, RREF)]
    owner.delete(Delete(FORK))
    entry = owner.find(RREF)
    assert entry is not None
    assert entry.handles == 1
    assert owner.drop(RREF) == [Release(RREF)]
    assert owner.arrive(RREF, FORK, HoldId(USER, 2)) == [Rejected(HoldId(USER, 2))]


def test_an_abandoned_homecoming_is_forgotten(owner: OwnerState) -> None:
    owner.arrive(RREF, FORK, HoldId(USER, 1))
    owner.abandon(HoldId(USER, 1))
    assert owner.waiting == 0
    assert owner.create(RREF, FORK)[1] == [Seen(FORK)]


def test_nobody_creates_under_the_name_of_another(owner: OwnerState) -> None:
    """It is told so, and what it says of that fork afterwards is heeded."""
    taken = RRefId(OTHER, 1)
    with pytest.raises(WireError, match="another process"):
        owner.create(taken, FORK)
    broken = Break(FORK, taken, PsfError("it was refused"))
    for seen in ([Seen(FORK)], []):
        assert owner.break_(broken) == [Send(USER, Refused(FORK)), *seen]
    assert not owner.entries


def test_evicted_owner_keeps_what_it_needs_itself(owner: OwnerState) -> None:
    mine = owner.adopt(RRefId(1, 1))
    owner.create(RREF, FORK)
    assert owner.evicted() == [Release(RREF)]
    assert owner.entries == [mine]


def test_evicted_nobody_waits_for_a_parent(owner: OwnerState) -> None:
    hold = HoldId(USER, 1)
    owner.arrive(RREF, FORK, hold)
    assert owner.evicted() == [Rejected(hold)]
    assert owner.waiting == 0


def test_a_child_waits_for_one_parent(owner: OwnerState) -> None:
    """Whoever names another parent in a repetition leaves nothing behind."""
    owner.register(REGISTER)
    owner.register(Register(CHILD, RREF, ForkId(4, 1), REGISTER.hold))
    owner.create(RREF, FORK)
    assert owner.waiting == 1
    owner._fenced.add(4)
    assert owner.lost(4) == [Seen(ForkId(4, 1)), Send(OTHER, Registered(CHILD)), Seen(CHILD)]
    assert not owner._waiting
