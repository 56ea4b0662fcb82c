"""What a message carries is held until the receiver has it, or surely never will."""

from psframework.rref.holds import Hold, HoldState, Incoming, Outgoing
from psframework.rref.ids import HoldId
from psframework.rref.messages import Ask, NotHeld, Send, Unhold

ME, OTHER = 1, 2


def outgoing() -> tuple[Outgoing[str], Hold[str]]:
    holds: Outgoing[str] = Outgoing(ME)
    return holds, holds.add(OTHER, "value")


def test_holds_are_numbered_for_each_receiver() -> None:
    holds, first = outgoing()
    assert first.id == HoldId(ME, 1)
    assert holds.add(OTHER, "b").id == HoldId(ME, 2)
    assert holds.add(3, "c").id == HoldId(ME, 1)


def test_the_receiver_answers() -> None:
    holds, hold = outgoing()
    assert holds.pop(OTHER, hold.id) == "value"
    assert holds.pop(OTHER, hold.id) is None
    assert not len(holds)


def test_nobody_else_can_answer() -> None:
    holds, hold = outgoing()
    assert holds.pop(3, hold.id) is None
    assert holds.pop(OTHER, HoldId(OTHER, 1)) is None
    assert len(holds) == 1


def test_doubt_asks_until_it_is_answered() -> None:
    holds, hold = outgoing()
    assert holds.pending(OTHER) == []
    assert holds.doubt(hold) == [Send(OTHER, Ask(hold.id))]
    assert holds.doubt(hold) == []
    assert holds.pending(OTHER) == [Ask(hold.id)]
    assert holds.pop(OTHER, hold.id) == "value"
    assert holds.pending(OTHER) == []


def test_a_cut_session_casts_doubt_on_what_was_answered() -> None:
    holds, hold = outgoing()
    travels = holds.add(OTHER, "b")  # its own end will say what became of it
    holds.answered(hold)
    assert holds.pending(OTHER) == []
    assert holds.cut(OTHER) == [Send(OTHER, Ask(hold.id))]
    assert holds.cut(OTHER) == []
    assert travels.state is HoldState.TRAVELS


def test_what_came_back_is_let_go_at_once_and_its_number_still_told() -> None:
    holds, hold = outgoing()
    assert holds.returned(hold) == ("value", [Send(OTHER, Ask(hold.id))])
    assert holds.returned(hold) == (None, [])
    assert hold.state is HoldState.RETURNED
    assert holds.pending(OTHER) == [Ask(hold.id)]
    assert holds.pop(OTHER, hold.id) is None
    assert not len(holds)


def test_a_dead_receiver() -> None:
    holds, hold = outgoing()
    back = holds.add(OTHER, "b")
    holds.returned(back)
    assert holds.lost(OTHER) == [hold]
    assert not len(holds)


def test_arrival_is_taken_once_and_told_until_confirmed() -> None:
    holds, hold = Incoming(), HoldId(OTHER, 1)
    assert holds.take(hold)
    assert not holds.take(hold)
    assert holds.ask(hold) == []  # it is held: no answer yet
    assert holds.done(hold) == [Send(OTHER, Unhold(hold))]
    assert holds.done(hold) == []
    assert holds.pending(OTHER) == [Unhold(hold)]
    assert holds.ask(hold) == [Send(OTHER, NotHeld(hold))]
    holds.forget(hold)
    assert holds.pending(OTHER) == []
    assert not len(holds)


def test_what_was_denied_is_refused_later() -> None:
    holds, late = Incoming(), HoldId(OTHER, 2)
    assert holds.ask(late) == [Send(OTHER, NotHeld(late))]
    assert holds.tombstones == 1
    assert not holds.take(late)
    assert holds.take(HoldId(OTHER, 1))  # closes the gap
    assert holds.tombstones == 0
    assert not holds.take(late)


def test_a_dead_sender_holds_nothing() -> None:
    holds, hold = Incoming(), HoldId(OTHER, 1)
    holds.take(hold)
    holds.lost(OTHER)
    assert holds.done(hold) == []
    assert not len(holds)
