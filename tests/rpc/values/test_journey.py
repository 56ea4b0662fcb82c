import pytest

from psframework.errors import ArgumentError
from psframework.rpc.values import journey
from psframework.rpc.values.journey import Journey, Outcome


class Ticketed:
    pass


class Porter:
    handles = Ticketed

    def depart(self, value, journey):
        return b"here"

    def arrive(self, data, journey):
        return Ticketed()

    def decline(self, data, journey):
        raise AssertionError


@pytest.fixture
def porter():
    porter = Porter()
    journey.carry("ticketed", porter)
    yield porter
    journey.put_down("ticketed")


def test_an_outcome_reaches_everybody_once():
    message, seen = Journey(), []
    message.on_outcome(lambda outcome: seen.append(("first", outcome)))
    message.on_outcome(lambda outcome: seen.append(("second", outcome)))
    message.end(Outcome.ANSWERED)
    message.end(Outcome.UNKNOWN)
    assert seen == [("first", Outcome.ANSWERED), ("second", Outcome.ANSWERED)]
    assert message.outcome is Outcome.ANSWERED


def test_whoever_asks_after_the_end_is_told_at_once():
    message, seen = Journey(), []
    message.end(Outcome.REFUSED)
    message.on_outcome(seen.append)
    assert seen == [Outcome.REFUSED]


def test_a_callback_that_raises_does_not_keep_the_outcome_from_others():
    message, seen = Journey(), []

    def fail(outcome):
        raise ValueError("first")

    message.on_outcome(fail)
    message.on_outcome(seen.append)
    with pytest.raises(ValueError, match="first"):
        message.end(Outcome.UNKNOWN)
    assert seen == [Outcome.UNKNOWN]


def test_a_callback_may_ask_again_while_the_message_ends():
    message, seen = Journey(), []
    message.on_outcome(lambda outcome: message.on_outcome(seen.append))
    message.end(Outcome.ANSWERED)
    assert seen == [Outcome.ANSWERED]


def test_notes_belong_to_one_message():
    first, second = Journey(), Journey(outgoing=False)
    first.notes["tensors"] = 1
    assert first.notes == {"tensors": 1}
    assert second.notes == {}
    assert (first.outgoing, second.outgoing) == (True, False)


def test_passengers_are_found_by_type_and_by_kind(porter):
    class Special(Ticketed):
        pass

    assert journey.passenger_for(Ticketed) == ("ticketed", porter)
    assert journey.passenger_for(Special) == ("ticketed", porter)
    assert journey.passenger_for(int) is None
    assert journey.passenger_named("ticketed") is porter
    assert journey.passenger_named("other") is None


def test_a_kind_and_a_type_are_carried_once(porter):
    class Other(Porter):
        handles = int

    with pytest.raises(ArgumentError, match="carried already"):
        journey.carry("ticketed", Other())
    with pytest.raises(ArgumentError, match="carried already"):
        journey.carry("other", Porter())
    assert journey.passenger_for(int) is None


def test_passengers_are_known() -> None:
    journey = Journey(is_reply=True)
    assert journey.is_reply and not journey.has_passengers
    journey.on_outcome(lambda outcome: None)
    assert journey.has_passengers and not Journey().is_reply
