import numpy as np
import pytest

from psframework.autograd.random_state import RandomStates, replayable
from psframework.errors import ArgumentError


def test_a_block_draws_what_the_recorded_one_drew():
    one, other, states = np.random.default_rng(1), np.random.default_rng(2), RandomStates()
    one.random()
    with states.recorded():
        first = [replayable(one).random(), replayable(other).random(), replayable(one).random()]
    going_on = np.random.default_rng(1)
    going_on.random(3)
    one.random(0)
    with states.replayed():
        assert [one.random(), other.random(), one.random()] == first
    assert one.random() == going_on.random()


def test_outside_of_a_block_nothing_is_noted():
    states, generator = RandomStates(), np.random.default_rng(1)
    assert replayable(generator) is generator
    with states.replayed():
        state = generator.bit_generator.state
    assert generator.bit_generator.state == state


def test_blocks_inside_each_other_all_know():
    outer, inner, generator = RandomStates(), RandomStates(), np.random.default_rng(1)
    with outer.recorded():
        first = replayable(generator).random()
        with inner.recorded():
            second = replayable(generator).random()
    with inner.replayed():
        assert generator.random() == second
    with outer.replayed():
        assert [generator.random(), generator.random()] == [first, second]


def test_a_generator_whose_state_cannot_be_kept_is_refused():
    with RandomStates().recorded(), pytest.raises(ArgumentError, match=r"draw from RandomState.*Generator"):
        replayable(np.random.RandomState(1))
