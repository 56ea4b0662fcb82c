"""LSTM against its formula, step by step."""

import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
from psframework.autograd.ops.lstm import lstm
from psframework.testing.gradcheck import gradcheck


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


INPUTS = [draw(4, 3, 2), draw(20, 2), draw(20, 5), draw(20), draw(20) / 2, draw(3, 5), draw(3, 5) / 2]


def by_hand(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, h: Tensor, c: Tensor) -> list:
    """The same from elementary operations, which have derivatives of their own."""
    outs = []
    for t in range(x.shape[0]):
        sums = x[t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh
        i, f, g, o = [sums[:, k * 5 : k * 5 + 5] for k in range(4)]
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outs.append(h)
    return [*outs, h, c]


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1, 2)])
def test_results_and_gradients_are_the_formulas(used: tuple[int, ...]) -> None:
    ours, theirs = [[tensor(array, requires_grad=True) for array in INPUTS] for _ in range(2)]
    y, h, c = lstm(*ours)
    *outs, h_n, c_n = by_hand(*theirs)
    for t, out in enumerate(outs):
        np.testing.assert_allclose(y.data[t], out.data, atol=1e-14)
    np.testing.assert_allclose(h.data, h_n.data, atol=1e-14)
    np.testing.assert_allclose(c.data, c_n.data, atol=1e-14)
    weights = draw(4, 3, 5)
    wanted = [sum((o * w).sum() for o, w in zip(outs, weights)), (h_n * 2).sum(), (c_n * c_n).sum()]
    found = [(y * weights).sum(), (h * 2).sum(), (c * c).sum()]
    sum(found[i] for i in used).backward()  # type: ignore[union-attr]
    sum(wanted[i] for i in used).backward()  # type: ignore[union-attr]
    for leaf, other in zip(ours, theirs):
        np.testing.assert_allclose(leaf.grad, other.grad, atol=1e-12)


def test_saturated_gates_neither_overflow_nor_lose_the_gradient() -> None:
    x, *rest = INPUTS
    gradcheck(lambda h: lstm(x * 1e4, *rest[:-2], h, rest[-1])[0], [rest[-2].copy()])
    y, h, c = lstm((x * 1e30).astype(np.float32), *[array.astype(np.float32) for array in rest])
    assert all(np.isfinite(part.data).all() for part in (y, h, c))
