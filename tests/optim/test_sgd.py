"""SGD against its formula, written out for one number."""

import numpy as np
import pytest

from psframework.optim import SGD, SGDRule

GRADIENTS = [0.5, -1.0, 2.0]


def reference(
    momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
) -> float:
    p, buffer = 1.0, 0.0
    for step, gradient in enumerate(GRADIENTS, 1):
        g = gradient + weight_decay * p
        if momentum:
            buffer = g if step == 1 else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        p -= 0.1 * g
    return p


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
)
def test_formula(options: dict[str, float]) -> None:
    rule = SGDRule(lr=0.1, **options)
    parameter = np.ones(2)
    state = rule.init_state(parameter)
    for step, gradient in enumerate(GRADIENTS, 1):
        rule.update(parameter, np.full(2, gradient), state, step)
    np.testing.assert_allclose(parameter, reference(**options), rtol=1e-14)


def test_arguments_are_torchs() -> None:
    assert SGD(None, 0.1, 0.9, 0.0, 0.01, True).rule == SGDRule(
        lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.01, nesterov=True
    )
    assert SGD().rule == SGDRule(lr=1e-3)


def test_without_momentum_there_is_no_state() -> None:
    assert SGDRule().init_state(np.zeros(3)) == {}
