"""What gradients are multiplied by: the scale of a float16 loss, and clipping."""

import math

import pytest

from psframework.pipeline.scaling import FIRST, Scaling


def test_nothing_is_to_be_done() -> None:
    scaling = Scaling(False, None)
    assert not scaling.needed
    assert [scaling.scale(step) for step in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(("power", "expected"), [(4.0, 1.0), (64.0, 0.5 / (1 + 1e-6 / 8)), (0.0, 1.0)])
def test_the_norm_is_at_most_what_was_asked_for(power: float, expected: float) -> None:
    scaling = Scaling(False, 4.0)
    assert scaling.needed
    assert scaling.coefficient(0, power) == pytest.approx(expected, rel=1e-12)


def test_a_norm_that_is_no_number_is_not_hidden() -> None:
    assert math.isnan(Scaling(False, 1.0).coefficient(0, math.nan) or 0.0)


def test_the_scale_halves_at_an_overflow_and_grows_after_a_while() -> None:
    scaling = Scaling(True, None, interval=2)
    powers = [math.inf, math.nan, 1.0, 1.0, 1.0]
    found = [scaling.coefficient(step, power) for step, power in enumerate(powers)]
    assert found == [None, None, 4 / FIRST, 4 / FIRST, 2 / FIRST]
    assert scaling.scale(5) == FIRST / 2


def test_the_norm_is_that_without_the_scale() -> None:
    scaling = Scaling(True, 1.0)
    assert scaling.coefficient(0, (2 * FIRST) ** 2) == pytest.approx(0.5 / FIRST, rel=1e-6)


def test_a_step_that_is_replayed_finds_its_scale() -> None:
    scaling = Scaling(True, None)
    assert scaling.coefficient(0, math.inf) is None
    assert scaling.coefficient(1, 1.0) == 2 / FIRST
    assert scaling.scale(0) == FIRST
    assert scaling.coefficient(0, math.inf) is None
    assert scaling.scale(1) == FIRST / 2


def test_steps_before_a_commit_are_forgotten() -> None:
    scaling = Scaling(True, None)
    for step in range(3):
        scaling.coefficient(step, 1.0)
    scaling.forget(2)
    assert scaling.scale(2) == FIRST
    with pytest.raises(KeyError):
        scaling.scale(1)
