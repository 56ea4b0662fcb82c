"""LAMB against its formula, and that the norms are those of the whole parameter."""

import numpy as np
import pytest

from psframework.autograd.tensor import Tensor
from psframework.optim import LAMB, AdamW, LAMBRule
from psframework.optim.blocks import BLOCK


def reference(p: np.ndarray, gradients: list[np.ndarray], rule: LAMBRule) -> np.ndarray:
    """Algorithm 2 of the paper, with the identity as phi."""
    p, (beta1, beta2) = p.astype(np.float64), rule.betas
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + rule.eps) + rule.weight_decay * p
        size = np.linalg.norm(p) / np.linalg.norm(r) if rule.adapt and p.any() and r.any() else 1.0
        p = p - rule.rate(t) * size * r
    return p


@pytest.mark.parametrize(
    "rule",
    [
        LAMBRule(lr=0.1),
        LAMBRule(lr=0.1, weight_decay=0.1, betas=(0.5, 0.9), eps=1e-3),
        LAMBRule(lr=0.1, weight_decay=0.1, adapt=False),
    ],
)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 4), np.float64), ((3, BLOCK), np.float32), ((4,), np.float16)]
)
def test_formula(rule: LAMBRule, shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(0)
    parameter, *gradients = (rng.standard_normal(shape).astype(dtype) for _ in range(4))
    expected = reference(parameter, [g.astype(np.float64) for g in gradients], rule)
    state = rule.init_state(parameter)
    for step, gradient in enumerate(gradients, 1):
        rule.update(parameter, gradient, state, step)
    close = {np.float64: (1e-12, 0), np.float32: (1e-4, 1e-5), np.float16: (2e-3, 1e-3)}[dtype]
    np.testing.assert_allclose(parameter, expected, *close)


def test_where_a_norm_is_0_the_step_is_adams() -> None:
    rule, parameter = LAMBRule(lr=0.1), np.zeros(3)
    state = rule.init_state(parameter)
    with np.errstate(all="raise"):
        rule.update(parameter, np.array([1.0, -1, 2]), state, 1)
        np.testing.assert_allclose(parameter, [-0.1, 0.1, -0.1], rtol=1e-5)
        still = np.ones(2)
        rule.update(still, np.zeros(2), rule.init_state(still), 1)
    np.testing.assert_array_equal(still, 1)


def test_biases_may_be_left_alone_by_a_group() -> None:
    rng = np.random.default_rng(0)
    (w, b, other), g = (
        [Tensor(rng.standard_normal(n), requires_grad=True) for n in (6, 3, 3)],
        rng.standard_normal(3),
    )
    other.data = b.data.copy()
    groups = [{"params": [w]}, {"params": [b], "weight_decay": 0.0, "adapt": False}]
    optimizer, adam = LAMB(groups, lr=0.1, weight_decay=0.1), AdamW([other], 0.1, eps=1e-6, weight_decay=0.0)
    for _ in range(3):
        w.grad, b.grad, other.grad = np.ones(6), g, g
        optimizer.step()
        adam.step()
    np.testing.assert_allclose(b.data, other.data, rtol=1e-12)


def test_arguments() -> None:
    assert LAMB(None, 0.1, (0.8, 0.9), 1e-5, 0.1, False).rule == LAMBRule(0.1, (0.8, 0.9), 1e-5, 0.1, False)
