"""RMSprop against its formula, written out for one number."""

import math
from typing import Any

import numpy as np
import pytest

from psframework.optim import RMSprop, RMSpropRule

GRADIENTS = [0.5, -1.0, 2.0]


def reference(
    alpha: float = 0.99, weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False
) -> float:
    p, square, mean, buffer = 1.0, 0.0, 0.0, 0.0
    for gradient in GRADIENTS:
        g = gradient + weight_decay * p
        square = alpha * square + (1 - alpha) * g * g
        mean = alpha * mean + (1 - alpha) * g
        variance = square - mean * mean if centered else square
        direction = g / (math.sqrt(variance) + 1e-8)
        buffer = momentum * buffer + direction
        p -= 0.1 * (buffer if momentum else direction)
    return p


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.5, "weight_decay": 0.1},
        {"momentum": 0.9},
        {"centered": True},
        {"centered": True, "momentum": 0.9, "alpha": 0.8},
    ],
)
def test_formula(options: dict[str, Any]) -> None:
    rule = RMSpropRule(lr=0.1, **options)
    parameter = np.ones(2)
    state = rule.init_state(parameter)
    for step, gradient in enumerate(GRADIENTS, 1):
        rule.update(parameter, np.full(2, gradient), state, step)
    np.testing.assert_allclose(parameter, reference(**options), rtol=1e-12)


def test_centered_stays_finite_under_a_constant_gradient() -> None:
    rule = RMSpropRule(centered=True, alpha=0.5)
    parameter = np.ones(1000, np.float32)
    gradient = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    state = rule.init_state(parameter)
    for step in range(1, 100):
        rule.update(parameter, gradient, state, step)
    assert np.isfinite(parameter).all()


def test_arguments_are_torchs() -> None:
    assert RMSprop(None, 0.1, 0.5, 1e-6, 0.2, 0.9, True).rule == RMSpropRule(
        lr=0.1, alpha=0.5, eps=1e-6, weight_decay=0.2, momentum=0.9, centered=True
    )
    assert RMSprop().rule == RMSpropRule(lr=1e-2, alpha=0.99, eps=1e-8)
