"""The simple recurrent network against its formula, step by step."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.rnn import rnn
from psframework.errors import ArgumentError


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


INPUTS = [draw(4, 3, 2), draw(5, 2), draw(5, 5), draw(5), draw(5) / 2, draw(3, 5)]


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_results_and_gradients_are_the_formulas(nonlinearity: str) -> None:
    ours, theirs = [[tensor(array, requires_grad=True) for array in INPUTS] for _ in range(2)]
    y, last = rnn(*ours, nonlinearity=nonlinearity)
    x, w_ih, w_hh, b_ih, b_hh, h = theirs
    total, weights = tensor(np.zeros(())), draw(4, 3, 5)
    for t in range(4):
        sums = x[t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh
        h = sums.tanh() if nonlinearity == "tanh" else sums.relu()
        np.testing.assert_allclose(y.data[t], h.data, atol=1e-14)
        total = total + (h * weights[t]).sum()
    np.testing.assert_allclose(last.data, h.data, atol=1e-14)
    (total + (h * h).sum()).backward()
    ((y * weights).sum() + (last * last).sum()).backward()
    for leaf, other in zip(ours, theirs):
        np.testing.assert_allclose(leaf.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_other_nonlinearities_are_refused() -> None:
    with pytest.raises(ArgumentError, match="must be 'tanh' or 'relu', not 'gelu'"):
        rnn(*INPUTS, nonlinearity="gelu")
