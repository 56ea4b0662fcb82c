"""Deadlines shrink, compare and never wait for ever; the wheel never expires a call early."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.rpc.deadline import Deadline, TimerWheel, boottime


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_shrinks_and_expires() -> None:
    clock = Clock()
    deadline = Deadline.after(5, clock=clock)
    assert deadline.remaining() == 5 and not deadline.expired
    clock.now += 3
    assert deadline.remaining() == 2 and deadline.seconds() == 2
    clock.now += 3
    assert deadline.remaining() == 0 and deadline.expired


def test_never_is_a_deadline_too() -> None:
    assert Deadline.after(None) is Deadline.NEVER
    assert Deadline.NEVER.remaining() == math.inf
    assert Deadline.NEVER.seconds() is None
    assert not Deadline.NEVER.expired


def test_the_smaller_one_ends_first() -> None:
    clock = Clock()
    soon, late = Deadline.after(1, clock=clock), Deadline.after(2, clock=clock)
    assert min(late, soon, Deadline.NEVER) is soon
    assert soon == Deadline(101.0) and len({soon, Deadline(101.0)}) == 1


def test_the_clock_does_not_run_backwards() -> None:
    assert boottime() <= boottime()


@given(st.lists(st.floats(0, 100), max_size=40), st.lists(st.floats(0, 120), max_size=10))
def test_the_wheel_expires_each_call_once_at_most_a_tick_late(times: list[float], looks: list[float]) -> None:
    wheel = TimerWheel(granularity=0.5)
    ticks = {key: wheel.add(key, at) for key, at in enumerate(times)}
    dropped = {key for key in ticks if key % 3 == 0}
    for key in dropped:
        wheel.discard(key, ticks[key])
    seen: set[int] = set()
    for now in sorted(looks):
        for key in wheel.expired(now):
            assert key not in seen and key not in dropped
            assert times[key] <= now
            seen.add(key)
        assert {key for key, at in enumerate(times) if at + 0.5 <= now} - dropped <= seen
    assert len(wheel) == len(times) - len(dropped) - len(seen)


def test_the_wheel_says_when_to_look_next() -> None:
    wheel = TimerWheel(granularity=1.0)
    assert wheel.next_at() is None
    first = wheel.add(1, 3.5)
    wheel.add(2, 7.2)
    assert wheel.next_at() == 4.0
    wheel.discard(1, first)
    assert wheel.next_at() == 8.0
    assert wheel.expired(8.0) == [2]
    assert wheel.next_at() is None


def test_calls_that_ended_long_before_their_deadlines_leave_nothing() -> None:
    wheel = TimerWheel()
    stays = [wheel.add(-number, 5000.0 + number) for number in range(100)]
    for call in range(100_000):
        wheel.discard(call, wheel.add(call, 86_400.0 + call / 100))
        assert len(wheel._ticks) <= 300 and len(wheel._order) <= 300
    assert wheel.next_at() == stays[0] * 0.01
    assert sorted(wheel.expired(6000.0)) == [-number for number in range(99, -1, -1)]


@pytest.mark.parametrize("seconds", [1e9, 1e300, sys.maxsize, 10**400, math.inf])
def test_what_nobody_will_wait_for_is_no_deadline(seconds: float) -> None:
    assert Deadline.after(seconds) is Deadline.NEVER
    assert Deadline.after(1e8).seconds() == pytest.approx(1e8)
