"""Adagrad against its formula, written out for one number."""

import math

import numpy as np
import pytest

from psframework.optim import Adagrad, AdagradRule, RowWiseAdagrad, RowWiseAdagradRule

GRADIENTS = [0.5, -1.0, 2.0]


def reference(
    lr_decay: float = 0.0, weight_decay: float = 0.0, initial_accumulator_value: float = 0.0
) -> float:
    p, total = 1.0, initial_accumulator_value
    for step, gradient in enumerate(GRADIENTS, 1):
        g = gradient + weight_decay * p
        total += g * g
        p -= 0.1 / (1 + (step - 1) * lr_decay) * g / (math.sqrt(total) + 1e-10)
    return p


@pytest.mark.parametrize(
    "options", [{}, {"lr_decay": 0.5}, {"weight_decay": 0.1, "initial_accumulator_value": 0.3}]
)
def test_formula(options: dict[str, float]) -> None:
    rule = AdagradRule(lr=0.1, **options)
    parameter = np.ones(2)
    state = rule.init_state(parameter)
    for step, gradient in enumerate(GRADIENTS, 1):
        rule.update(parameter, np.full(2, gradient), state, step)
    np.testing.assert_allclose(parameter, reference(**options), rtol=1e-14)


def test_arguments_are_torchs() -> None:
    assert Adagrad(None, 0.1, 0.2, 0.3, 0.4, 0.5).rule == AdagradRule(
        lr=0.1, lr_decay=0.2, weight_decay=0.3, initial_accumulator_value=0.4, eps=0.5
    )
    assert Adagrad().rule == AdagradRule(lr=1e-2, eps=1e-10)


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 3), (5,), ()])
def test_row_wise(shape: tuple[int, ...]) -> None:
    """DLRM's: one sum of mean squares for each row."""
    rng = np.random.default_rng(0)
    start, *gradients = (rng.standard_normal(shape) for _ in range(4))
    rule = RowWiseAdagradRule(lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-3)
    parameter, expected = np.array(start), np.array(start)
    state = rule.init_state(parameter)
    total = np.full(shape[:1] + (1,) * (len(shape) - 1), 0.5)
    for step, gradient in enumerate(gradients, 1):
        g = gradient + 0.1 * expected
        total += np.mean(g**2, axis=tuple(range(1, len(shape))), keepdims=True) if shape else g**2
        expected -= 0.1 / (1 + (step - 1) * 0.1) * g / (np.sqrt(total) + 1e-3)
        rule.update(parameter, np.array(gradient), state, step)
    assert state["sum"].shape == total.shape
    np.testing.assert_allclose(state["sum"], total, rtol=1e-13)
    np.testing.assert_allclose(parameter, expected, rtol=1e-13)


def test_row_wise_arguments() -> None:
    assert RowWiseAdagrad().rule == RowWiseAdagradRule(lr=1e-2, eps=1e-8)
    assert RowWiseAdagrad(None, 1.0, 0.1, 0.2, 0.3, 0.4).rule == RowWiseAdagradRule(1.0, 0.1, 0.2, 0.3, 0.4)
