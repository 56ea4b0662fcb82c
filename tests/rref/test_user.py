"""A user's forks: pending until the owner confirms, deleted once nobody needs them, dead with their owner."""

import pytest

from psframework.errors import DeadlineExceeded, Evicted, PeerLost
from psframework.rref.holds import Hold, Incoming
from psframework.rref.ids import ForkId, HoldId, Incarnations, RRefId
from psframework.rref.messages import Break, Confirmed, Delete, Failed, Register, Send, Unhold
from psframework.rref.user import Fork, ForkState, UserState

ME, OWNER, OTHER = 1, 2, 3
RREF = RRefId(ME, 1)
HOLD = HoldId(OTHER, 1)


@pytest.fixture
def user() -> UserState:
    return UserState(ME, Incarnations(), Incoming())


def arrived(user: UserState, sender: int = OTHER) -> Fork:
    hold = HoldId(sender, 1)
    assert user._incoming.take(hold)
    fork, actions = user.arrive(RREF, OWNER, "owner", ForkId(OTHER, 1), hold)
    assert actions == [Send(OWNER, Register(fork.id, RREF, ForkId(OTHER, 1), hold))]
    return fork


def test_create_confirm_delete(user: UserState) -> None:
    fork = user.create(RREF, OWNER, "owner")
    assert fork.is_pending
    assert user.created(fork) == [Confirmed(OWNER, fork.id)]
    assert user.drop(fork) == [Send(OWNER, Delete(fork.id))]
    assert user.pending(OWNER) == [Delete(fork.id)]
    assert user.deleted(OWNER, fork.id) == []
    assert len(user) == 0


def test_forks_are_numbered_at_each_owner(user: UserState) -> None:
    ids = [user.create(RRefId(ME, i), owner, "o").id for i, owner in enumerate([OWNER, OTHER, OWNER])]
    assert ids == [ForkId(ME, 1), ForkId(ME, 1), ForkId(ME, 2)]


def test_dropped_while_pending_waits(user: UserState) -> None:
    fork = user.create(RREF, OWNER, "owner")
    assert user.drop(fork) == []
    assert user.created(fork) == [Confirmed(OWNER, fork.id), Send(OWNER, Delete(fork.id))]


def test_a_message_holds_the_fork(user: UserState) -> None:
    fork = user.create(RREF, OWNER, "owner")
    user.created(fork)
    hold: Hold[Fork | RRefId] = Hold(HoldId(ME, 1), OTHER, fork)
    user.hold(fork, hold)
    assert user.drop(fork) == []
    assert user.unhold(fork, OTHER, hold.id) == [Send(OWNER, Delete(fork.id))]


def test_registered_then_the_parent_is_told(user: UserState) -> None:
    fork = arrived(user)
    assert user.pending(OWNER) == [Register(fork.id, RREF, ForkId(OTHER, 1), HOLD)]
    assert user.registered(OWNER, fork.id) == [Send(OTHER, Unhold(HOLD)), Confirmed(OWNER, fork.id)]
    assert user.registered(OWNER, fork.id) == []


def test_an_owner_that_sent_it_needs_not_be_told(user: UserState) -> None:
    fork = arrived(user, sender=OWNER)
    assert user.registered(OWNER, fork.id) == [Confirmed(OWNER, fork.id)]
    assert len(user._incoming) == 0


def test_refused(user: UserState) -> None:
    fork = arrived(user)
    told, failed = user.refused(OWNER, fork.id)
    assert told == Send(OTHER, Unhold(HOLD))
    assert isinstance(failed, Failed)
    assert isinstance(fork.error, PeerLost)
    assert not fork.error.may_have_run
    assert len(user) == 0


def test_a_broken_creation_is_told_to_the_owner(user: UserState) -> None:
    fork, error = user.create(RREF, OWNER, "owner"), DeadlineExceeded("late")
    assert user.broken(fork, error) == [
        Failed(OWNER, fork.id, error),
        Send(OWNER, Break(fork.id, RREF, error)),
    ]
    assert fork.error is error
    assert user.created(fork) == []
    assert user.registered(OWNER, fork.id) == []
    assert fork.state is ForkState.CONFIRMED
    assert user.drop(fork) == [Send(OWNER, Delete(fork.id))]


def test_a_broken_creation_that_nobody_needs_is_deleted(user: UserState) -> None:
    fork, error = user.create(RREF, OWNER, "owner"), DeadlineExceeded("late")
    user.drop(fork)
    assert user.broken(fork, error)[1:] == [Send(OWNER, Delete(fork.id))]


def test_owner_lost(user: UserState) -> None:
    fork = arrived(user)
    told, _ = user.lost(OWNER)
    assert told == Send(OTHER, Unhold(HOLD))
    assert isinstance(fork.error, PeerLost)
    assert fork.error.peer == "owner"
    assert user.drop(fork) == []
    assert user.owners == []


def test_nothing_is_asked_of_the_dead(user: UserState) -> None:
    user._fenced.add(OWNER)
    fork = user.create(RREF, OWNER, "owner")
    assert isinstance(fork.error, PeerLost)
    assert len(user) == 0
    assert not user._owners


def test_evicted(user: UserState) -> None:
    fork, other = arrived(user), user.create(RRefId(ME, 2), OTHER, "other")
    user.evicted(Evicted("lease"))
    assert isinstance(fork.error, Evicted)
    assert isinstance(other.error, Evicted)
    assert isinstance(user.create(RRefId(ME, 3), OWNER, "owner").error, Evicted)
    assert len(user) == 0
