"""Before a backward runs: which parameters it gets to, and when the gradient of each is final."""

from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.autograd.engine import Sums, propagate, start
from psframework.ddp.reach import AT_ONCE, reach, ready_order
from psframework.errors import AutogradError


def leaf(value: float = 1.0) -> psf.Tensor:
    return psf.tensor(np.full(3, value), requires_grad=True)


def walked(loss: psf.Tensor, *parameters: psf.Tensor) -> Any:
    gradients, _ = start(loss, None)
    return reach(gradients, {each: number for number, each in enumerate(parameters)})


def test_the_oldest_node_that_uses_a_parameter_counts() -> None:
    a, b, unused, other = leaf(), leaf(), leaf(), leaf()
    first = a * b
    second = first * a  # `a` is final only after `first` has run
    found = walked((second * other).sum(), a, b, unused)
    assert first.node is not None
    assert found.lowest == [first.node.order, first.node.order, 0]
    assert found.others == [other]


def test_a_root_that_is_a_parameter_has_its_gradient_at_once() -> None:
    a = psf.tensor(2.0, requires_grad=True)
    assert walked(a, a).lowest == [AT_ONCE]


def test_a_freed_graph_is_an_error_that_says_so() -> None:
    a = leaf()
    loss = (a * a).sum()
    loss.backward()
    with pytest.raises(AutogradError, match="freed by an earlier backward"):
        walked(loss, a)


def test_gradients_are_final_once_the_backward_is_below_the_order_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        leaves = [leaf(float(rng.normal())) for _ in range(5)]
        values = list(leaves)
        for _ in range(12):
            i, j = rng.integers(len(values), size=2)
            values.append(values[i] * 0.5 + values[j])
        loss = (values[-1] * values[-2]).sum()
        lowest = walked(loss, *leaves).lowest
        whole: Any = psf.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
        gradients, heap = start(loss, None)
        sums = Sums()
        for number in ready_order(lowest):
            if not lowest[number]:
                assert whole[number] is None
                continue
            propagate(gradients, heap, True, floor=lowest[number] - 1, sums=sums)
            np.testing.assert_allclose(gradients[leaves[number]], whole[number], rtol=1e-12)


def test_order_of_readiness() -> None:
    assert ready_order([5, 9, 0, 9, AT_ONCE, 0]) == [4, 3, 1, 0, 5, 2]


def test_each_node_is_walked_once() -> None:
    """Of a graph with 2 ** 200 paths, the walk of which would never end."""
    a = leaf()
    first = value = a + a
    for _ in range(200):
        value = value + value
    assert first.node is not None
    assert walked(value.sum(), a).lowest == [first.node.order]
