"""Adam and AdamW against their formulas, written out for one number."""

import math
from typing import Any

import numpy as np
import pytest

from psframework.optim import Adam, AdamRule, AdamW, AdamWRule
from psframework.optim.rule import UpdateRule

GRADIENTS = [0.5, -1.0, 2.0, 0.01]


def reference(
    *, decoupled: bool, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float, amsgrad: bool = False
) -> float:
    p, mean, square, largest = 1.0, 0.0, 0.0, 0.0
    for step, gradient in enumerate(GRADIENTS, 1):
        g = gradient
        if decoupled:
            p *= 1 - 0.1 * weight_decay
        else:
            g += weight_decay * p
        mean = betas[0] * mean + (1 - betas[0]) * g
        square = betas[1] * square + (1 - betas[1]) * g * g
        largest = max(largest, square)
        v = largest if amsgrad else square
        denominator = math.sqrt(v) / math.sqrt(1 - betas[1] ** step) + 1e-8
        p -= 0.1 / (1 - betas[0] ** step) * mean / denominator
    return p


@pytest.mark.parametrize("kind", [AdamRule, AdamWRule])
@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.0},
        {"weight_decay": 0.1, "betas": (0.8, 0.9)},
        {"weight_decay": 0.1, "amsgrad": True, "betas": (0.5, 0.5)},
    ],
)
def test_formula(kind: type[AdamRule], options: dict[str, Any]) -> None:
    rule: UpdateRule = kind(lr=0.1, **options)
    parameter = np.ones(2)
    state = rule.init_state(parameter)
    for step, gradient in enumerate(GRADIENTS, 1):
        rule.update(parameter, np.full(2, gradient), state, step)
    np.testing.assert_allclose(parameter, reference(decoupled=kind is AdamWRule, **options), rtol=1e-13)


def test_arguments_are_torchs() -> None:
    assert Adam(None, 0.1, (0.8, 0.9), 1e-6, 0.5, True).rule == AdamRule(
        lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.5, amsgrad=True
    )
    assert Adam().rule == AdamRule(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    assert AdamW().rule == AdamWRule(lr=1e-3, weight_decay=1e-2)


def test_the_first_step_has_the_size_of_the_rate() -> None:
    parameter = np.zeros(3, np.float32)
    rule = AdamRule(lr=1e-3)
    rule.update(parameter, np.array([1e-3, -5, 100], np.float32), rule.init_state(parameter), 1)
    np.testing.assert_allclose(parameter, [-1e-3, 1e-3, -1e-3], rtol=1e-4)
