"""What is under way in one backward: counted, ended once, and stopped by the first error."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp
from psframework.ddp.flight import Flight
from psframework.errors import CollectiveMismatch, PeerLost


class Group:
    """Keeps what was begun, until the test ends it."""

    rank = 1
    members = ("a", "b")

    def __init__(self) -> None:
        self.begun: list[Callable[[BaseException | None], None]] = []
        self.unless: list[Callable[[], BaseException | None]] = []
        self.declined: list[str] = []

    def begin(self, operation: Operation, send: Any, receive: Any, **options: Any) -> None:
        self.begun.append(options["on_done"])
        self.unless.append(options["unless"])

    def decline(self, why: str, unless: Any = None) -> None:
        self.declined.append(why)
        self.unless.append(unless)


def begin(flight: Flight, then: Callable[[], None] | None = None) -> None:
    array = np.zeros(3)
    flight.begin(Operation.ALL_REDUCE, array, array, ReduceOp.SUM, then=then)


async def test_it_is_over_when_all_have_landed_and_the_backward_has_ended() -> None:
    group = Group()
    ends: list[Any] = []
    thens: list[int] = []
    flight = Flight(group, ends.append)
    begin(flight, lambda: thens.append(1))
    begin(flight)
    group.begun[0](None)
    assert thens == [1]
    flight.land()
    await asyncio.sleep(0)
    assert not flight.over and ends == []
    group.begun[1](None)
    await flight.wait()
    assert ends == [None] and flight.taken() is None


async def test_after_an_error_nothing_more_is_begun() -> None:
    group = Group()
    ends: list[Any] = []
    flight = Flight(group, ends.append)
    begin(flight)
    begin(flight)
    assert group.unless[1]() is None
    lost = PeerLost("gone", peer="a")
    group.begun[0](lost)
    assert group.unless[1]() is lost  # so the second, if it has not begun, won't
    begin(flight)
    assert len(group.begun) == 2
    group.begun[1](PeerLost("gone too", peer="a"))
    flight.land()
    await flight.wait()
    assert ends == [lost] and group.declined == []
    taken = flight.taken()
    assert taken is not lost and str(taken) == "gone" and flight.error is None


async def test_an_own_error_is_told_to_the_others_and_one_of_a_collective_is_not() -> None:
    group = Group()
    flight = Flight(group, lambda error: None)
    own = ValueError("mine")
    flight.fail(own)
    flight.fail(ValueError("a second one"))
    flight.land()
    assert group.declined == ["a backward failed with ValueError: mine"]
    await flight.wait()
    assert flight.taken() is own
    shared = Flight(group, lambda error: None)
    shared.fail(CollectiveMismatch("all have it"))
    shared.land()
    assert len(group.declined) == 1
    elsewhere = Flight(group, lambda error: None)
    elsewhere.fail(PeerLost("a server that a hook asked", peer="ps"))
    elsewhere.land()
    assert "PeerLost: a server that a hook asked" in group.declined[1]


async def test_the_others_are_told_when_nothing_more_is_begun_here() -> None:
    """What a hook begins after that would be out of step."""
    group = Group()
    flight = Flight(group, lambda error: None)
    flight.hold()
    own, theirs = ValueError("mine"), CollectiveMismatch("of another rank")
    flight.fail(own)
    flight.land()
    assert group.declined == []
    flight.fail(theirs)  # which the hook met meanwhile
    flight.land()
    assert len(group.declined) == 1 and group.unless[0]() is theirs
    await flight.wait()
    assert flight.taken() is own


async def test_a_refusal_says_who_and_why() -> None:
    group = Group()
    flight = Flight(group, lambda error: None)
    flight.refuse("no gradient")
    flight.land()
    assert group.declined == ["no gradient"]
    await flight.wait()
    error = flight.taken()
    assert isinstance(error, CollectiveMismatch) and str(error) == "rank 1 (b): no gradient"


async def test_a_callback_that_fails_does_not_keep_the_flight_up() -> None:
    group = Group()
    flight = Flight(group, lambda error: None)

    def broken() -> None:
        raise ValueError

    begin(flight, broken)
    with pytest.raises(ValueError):
        group.begun[0](None)
    flight.land()
    await flight.wait()


async def test_only_one_claims_it() -> None:
    flight = Flight(Group(), lambda error: None)
    assert flight.claim() and not flight.claim()
