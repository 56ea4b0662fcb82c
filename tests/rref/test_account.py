"""Three accounts that talk to each other directly; the model test covers the rest."""

import pytest

from psframework.errors import Evicted, WireError
from psframework.rpc.values.journey import Outcome
from psframework.rref.account import Account
from psframework.rref.ids import ForkId, HoldId, RRefId
from psframework.rref.messages import Action, Ask, Delete, NotHeld, Register, Send, Unhold
from psframework.rref.user import Fork

OWNER, A, B = 1, 2, 3


class Three:
    def __init__(self) -> None:
        self.accounts = {me: Account(me) for me in (OWNER, A, B)}
        self.owner, self.a, self.b = self.accounts.values()

    def run(self, account: Account, actions: list[Action]) -> list[Action]:
        """Delivers everything at once; returns what is no message."""
        rest: list[Action] = []
        for action in actions:
            if isinstance(action, Send):
                to = self.accounts[action.to]
                rest += self.run(to, to.receive(account.incarnation, action.message))
            else:
                rest.append(action)
        return rest

    def create(self) -> Fork:
        """A asks the owner for a value."""
        fork = self.a.user.create(self.a.new_id(), OWNER, "owner")
        entry, actions = self.owner.owner.create(fork.rref, fork.id)
        assert entry is not None
        self.run(self.owner, actions + self.owner.owner.finish(entry, "value"))
        self.run(self.a, self.a.user.created(fork))
        return fork


def test_user_to_user() -> None:
    three = Three()
    fork = three.create()
    hold = three.a.depart(fork, B)
    assert three.run(three.a, three.a.user.drop(fork)) == []
    child, actions = three.b.arrive(fork.rref, OWNER, "owner", fork.id, hold.id)
    assert child is not None
    three.run(three.b, actions)
    entry = three.owner.owner.find(fork.rref)
    assert entry is not None
    assert entry.forks == {child.id}
    assert len(three.a.user) == len(three.a.outgoing) == len(three.b.incoming) == 0
    three.run(three.b, three.b.user.drop(child))
    assert len(three.owner.owner) == 0


def test_owner_to_user_needs_one_round_trip() -> None:
    three = Three()
    entry = three.owner.owner.adopt(three.owner.new_id())
    hold = three.owner.depart(entry, A)
    assert three.owner.owner.drop(entry.rref) == []
    fork, actions = three.a.arrive(entry.rref, OWNER, "owner", None, hold.id)
    assert fork is not None
    three.run(three.a, actions)
    assert entry.forks == {fork.id}
    assert not entry.holds
    assert three.a.debtors == three.owner.debtors == set()


def test_user_to_owner() -> None:
    three = Three()
    fork = three.create()
    hold = three.a.depart(fork, OWNER)
    none, actions = three.owner.arrive(fork.rref, OWNER, "owner", fork.id, hold.id)
    assert none is None
    three.run(three.owner, actions)
    assert len(three.a.outgoing) == 0
    three.run(three.a, three.a.user.drop(fork))
    entry = three.owner.owner.find(fork.rref)
    assert entry is not None
    assert entry.handles == 1


def test_only_the_receiver_says_that_nothing_came() -> None:
    three = Three()
    fork = three.create()
    hold = three.a.depart(fork, B)
    asked = three.a.outcome(hold, Outcome.UNKNOWN)
    assert asked == [Send(B, Ask(hold.id))]
    assert three.run(three.a, three.a.user.drop(fork)) == []
    three.run(three.a, asked)
    assert len(three.a.user) == 0
    with pytest.raises(WireError, match="given up"):
        three.b.arrive(fork.rref, OWNER, "owner", fork.id, hold.id)


def test_an_answer_alone_releases_nothing() -> None:
    three = Three()
    hold = three.a.depart(three.create(), B)
    assert three.a.outcome(hold, Outcome.ANSWERED) == []
    assert len(three.a.outgoing) == 1
    assert three.a.debtors == set()
    assert three.a.cut(B) == [Send(B, Ask(hold.id))]
    assert three.a.debtors == {B}


def test_what_surely_was_not_taken_is_let_go() -> None:
    three = Three()
    fork = three.create()
    hold = three.a.depart(fork, B)
    three.a.user.drop(fork)
    asked, deleted = three.a.outcome(hold, Outcome.REFUSED)
    assert asked == Send(B, Ask(hold.id))
    assert deleted == Send(OWNER, Delete(fork.id))
    three.run(three.a, [asked, deleted])
    assert three.a.debtors == set()


def test_a_receiver_that_died_holds_nothing() -> None:
    three = Three()
    fork = three.create()
    hold = three.a.depart(fork, B)
    three.a.user.drop(fork)
    assert three.a.lost(B) == [Send(OWNER, Delete(fork.id))]
    assert three.a.lost(B) == []
    assert three.a.outcome(hold, Outcome.UNKNOWN) == []


def test_nothing_is_taken_from_the_dead() -> None:
    three = Three()
    hold = three.a.depart(three.create(), B)
    three.b.lost(A)
    with pytest.raises(Evicted, match="join again"):
        three.b.arrive(RRefId(A, 1), OWNER, "owner", None, hold.id)
    for message in (Ask(hold.id), Delete(ForkId(A, 1)), Unhold(HoldId(B, 1))):
        with pytest.raises(Evicted, match="join again"):
            three.b.receive(A, message)
    assert len(three.b.incoming) == 0


def test_what_is_remembered_of_the_dead_is_bounded() -> None:
    """A thousand lives begin, refer to a value, pass it on, and end; five of them are there at a time."""
    me = Account(1)
    entry = me.owner.adopt(me.new_id())
    for newest in range(2, 1_002):
        hold = me.depart(entry, newest)
        me.receive(newest, Register(ForkId(newest, 1), entry.rref, None, hold.id))
        me.outcome(me.depart(entry, newest), Outcome.UNKNOWN)
        me.arrive(RRefId(newest, 1), newest, "new", None, HoldId(newest, 1))
        if newest > 6:
            dead = newest - 5
            me.lost(dead)
            me.user.create(me.new_id(), dead, "dead")
            with pytest.raises(Evicted):
                me.receive(dead, Delete(ForkId(dead, 1)))
    assert me.fenced.runs == 1
    assert len(entry.forks) == len(entry.holds) == len(me.user) == 5
    for memory in (me.owner._holders, me.user._owners, me.incoming._senders, me.outgoing._last):
        assert len(memory) == 5
    assert 2 in me.fenced and 996 in me.fenced and 997 not in me.fenced


def test_the_evicted_take_part_in_nothing() -> None:
    """Who has not heard of it yet may still ask, in vain."""
    three = Three()
    fork = three.create()
    entry = three.owner.owner.find(fork.rref)
    assert entry is not None
    three.owner.owner.acquire(entry)
    three.owner.evicted(Evicted("lease"))
    assert three.owner.receive(A, Register(ForkId(A, 2), fork.rref, fork.id, HoldId(B, 1))) == []
    assert not entry.forks


def test_nobody_speaks_for_another() -> None:
    three = Three()
    three.create()
    for message in (Delete(ForkId(A, 1)), Ask(HoldId(A, 1))):
        with pytest.raises(WireError, match="speaks for"):
            three.owner.receive(B, message)
    hold = three.a.depart(three.a.owner.adopt(three.a.new_id()), B)
    three.a.receive(OWNER, Unhold(hold.id))
    three.a.receive(OWNER, NotHeld(hold.id))
    assert len(three.a.outgoing) == 1


def test_evicted() -> None:
    three = Three()
    fork = three.create()
    three.a.evicted(Evicted("lease"))
    assert isinstance(fork.error, Evicted)
    assert len(three.a.user) == 0


def test_the_evicted_owe_nothing() -> None:
    """Others answer nothing that the dead ask: leaving would wait for them in vain."""
    three = Three()
    fork = three.create()
    three.a.outcome(three.a.depart(fork, B), Outcome.UNKNOWN)
    mine = three.b.owner.adopt(three.b.new_id())
    three.a.arrive(mine.rref, B, "b", None, three.b.depart(mine, A).id)
    assert three.a.debtors == {B}
    three.a.evicted(Evicted("lease"))
    assert three.a.debtors == set()
    assert three.a.pending(B) == []
