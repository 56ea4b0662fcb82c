"""GRU against its formula, step by step."""

import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
from psframework.autograd.ops.gru import gru


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


INPUTS = [draw(4, 3, 2), draw(15, 2), draw(15, 5), draw(15), draw(15) / 2, draw(3, 5)]


def by_hand(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, h: Tensor) -> list[Tensor]:
    """The same from elementary operations, which have derivatives of their own."""
    outs = []
    for t in range(x.shape[0]):
        (xr, xz, xn), (hr, hz, hn) = [
            [sums[:, k * 5 : k * 5 + 5] for k in range(3)]
            for sums in (x[t] @ w_ih.T + b_ih, h @ w_hh.T + b_hh)
        ]
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        h = (1 - z) * n + z * h
        outs.append(h)
    return outs


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_results_and_gradients_are_the_formulas(used: tuple[int, ...]) -> None:
    ours, theirs = [[tensor(array, requires_grad=True) for array in INPUTS] for _ in range(2)]
    y, h = gru(*ours)
    outs = by_hand(*theirs)
    for t, out in enumerate(outs):
        np.testing.assert_allclose(y.data[t], out.data, atol=1e-14)
    np.testing.assert_allclose(h.data, outs[-1].data, atol=1e-14)
    weights = draw(4, 3, 5)
    wanted = [sum((o * w).sum() for o, w in zip(outs, weights)), (outs[-1] * outs[-1]).sum()]
    found = [(y * weights).sum(), (h * h).sum()]
    sum(found[i] for i in used).backward()  # type: ignore[union-attr]
    sum(wanted[i] for i in used).backward()  # type: ignore[union-attr]
    for leaf, other in zip(ours, theirs):
        np.testing.assert_allclose(leaf.grad, other.grad, atol=1e-12)


def test_the_reset_gate_acts_after_the_product() -> None:
    """With the gate shut nothing of the state, not even its bias's sum, reaches the candidate."""
    x, w_ih, w_hh, b_ih, b_hh, h = [array.copy() for array in INPUTS]
    b_ih[:5] = -1e3
    b_ih[5:10] = -1e3  # and the update gate takes the candidate
    _, last = gru(x[:1], w_ih, w_hh, b_ih, b_hh, h)
    np.testing.assert_allclose(last.data, np.tanh(x[0] @ w_ih[10:].T + b_ih[10:]), atol=1e-12)
