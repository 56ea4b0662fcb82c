import numpy as np
import pytest

from psframework.autograd.draws import Draws, drawing
from psframework.errors import ArgumentError


def test_a_block_draws_what_the_recorded_one_drew():
    one, other, draws = np.random.default_rng(1), np.random.default_rng(2), Draws()
    one.random()
    with draws.recorded():
        first = [drawing(one).random(), drawing(other).random(), drawing(one).random()]
    going_on = np.random.default_rng(1)
    going_on.random(3)
    one.random(0)
    with draws.replayed():
        assert [one.random(), other.random(), one.random()] == first
    assert one.random() == going_on.random()


def test_outside_of_a_block_nothing_is_noted():
    draws, generator = Draws(), np.random.default_rng(1)
    assert drawing(generator) is generator
    with draws.replayed():
        state = generator.bit_generator.state
    assert generator.bit_generator.state == state


def test_blocks_inside_each_other_all_know():
    outer, inner, generator = Draws(), Draws(), np.random.default_rng(1)
    with outer.recorded():
        first = drawing(generator).random()
        with inner.recorded():
            second = drawing(generator).random()
    with inner.replayed():
        assert generator.random() == second
    with outer.replayed():
        assert [generator.random(), generator.random()] == [first, second]


def test_a_generator_whose_state_cannot_be_kept_is_refused():
    with Draws().recorded(), pytest.raises(ArgumentError, match=r"draw from RandomState.*Generator"):
        drawing(np.random.RandomState(1))
