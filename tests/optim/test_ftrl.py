"""FTRL-Proximal against its formula, written out for one number, and its limits."""

from typing import Any

import numpy as np
import pytest

from psframework.optim import FTRL, Ftrl, FTRLRule, schedule

GRADIENTS = [0.5, -1.0, 2.0, 0.25]


def keras(
    lr: float = 0.1,
    lr_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
    l2_shrinkage: float = 0.0,
    beta: float = 0.0,
) -> float:
    """As tf.keras.optimizers.Ftrl.update_step has it."""
    w, n, z = 1.0, initial_accumulator_value, 0.0
    l2 = l2 + beta / (2 * lr)
    for g in GRADIENTS:
        new = n + g**2
        z += g + 2 * l2_shrinkage * w - (new**-lr_power - n**-lr_power) / lr * w
        quadratic = new**-lr_power / lr + 2 * l2
        w = (min(max(z, -l1), l1) - z) / quadratic
        n = new
    return w


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l1": 0.2},
        {"l2": 0.3, "l2_shrinkage": 0.2},
        {"beta": 1.0, "l1": 0.01, "lr": 0.5},
        {"lr_power": -0.7, "initial_accumulator_value": 0.5},
        {"lr_power": 0.0},
        {"initial_accumulator_value": 0.0},
    ],
)
def test_formula(options: dict[str, float]) -> None:
    rule = FTRLRule(**({"lr": 0.1} | options))
    parameter = np.ones(2)
    state = rule.init_state(parameter)
    for step, gradient in enumerate(GRADIENTS, 1):
        rule.update(parameter, np.full(2, gradient), state, step)
    np.testing.assert_allclose(parameter, keras(**options), rtol=1e-13)


def test_arguments_are_keras() -> None:
    made = FTRL(None, 0.1, -0.4, 0.2, 0.3, 0.4, 0.5, 0.6)
    assert made.rule == FTRLRule(0.1, -0.4, 0.2, 0.3, 0.4, 0.5, 0.6)
    assert Ftrl is FTRL


def test_l1_makes_exact_zeros() -> None:
    """Logistic regression of which 2 of 20 features matter: the weights of the others are 0, not small."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 20))
    labels = x[:, 3] - x[:, 8] > 0
    weights, rule = np.zeros(20), FTRLRule(lr=0.5, l1=40.0, beta=1.0)
    state = rule.init_state(weights)
    for step, (row, label) in enumerate(zip(x, labels), 1):
        rule.update(weights, (1 / (1 + np.exp(-row @ weights)) - label) * row, state, step)
    assert set(np.nonzero(weights)[0]) == {3, 8}
    assert ((x @ weights > 0) == labels).mean() > 0.95


def test_without_gradient_nothing_moves_and_nothing_is_nan() -> None:
    rule: Any = FTRLRule(lr=0.1, initial_accumulator_value=0.0)
    parameter = np.zeros(2, np.float32)
    state = rule.init_state(parameter)
    rule.update(parameter, np.array([0, 1], np.float32), state, 1)
    np.testing.assert_allclose(parameter, [0, -0.1], rtol=1e-6)


def test_another_rate_does_not_scale_the_parameters() -> None:
    """With 1/eta of the step before, a step without gradient leaves them, whatever the rate is then."""
    rule = FTRLRule(lr=schedule.Cosine(0.5, 4), beta=1.0)
    parameter = np.zeros(3)
    state = rule.init_state(parameter)
    rule.update(parameter, np.array([1.0, -2, 3]), state, 1)
    before = parameter.copy()
    for step in range(2, 8):  # the rate falls to 0
        rule.update(parameter, np.zeros(3), state, step)
    np.testing.assert_allclose(parameter, before, rtol=1e-9)
    rule.update(parameter, np.ones(3), state, 8)
    np.testing.assert_allclose(parameter, before, rtol=1e-4)
