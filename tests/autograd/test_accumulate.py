"""Gradients are added to what a leaf, or a buffer, has already."""

import numpy as np
import pytest

from psframework import backend
from psframework.autograd.accumulate import added, backward_into_grad
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.testing.strict_device import strict_devices


def test_gradients_add_up_in_grad() -> None:
    leaf = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    for _ in range(3):
        backward_into_grad([(leaf * 2.0).sum()])
    assert leaf.grad.tolist() == [6.0, 6.0]


def test_gradients_on_a_device_add_up_there() -> None:
    with strict_devices("gpu-0") as (gpu,):
        leaf = Tensor(gpu.to_device(np.array([1.0, 2.0])), requires_grad=True)
        for _ in range(3):
            backward_into_grad([(leaf * 2.0).sum()])
        assert type(leaf.grad) is gpu.ndarray and backend.asnumpy(leaf.grad).tolist() == [6.0, 6.0]


def test_a_buffer_is_overwritten_first_and_added_to_then() -> None:
    leaf = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    leaf.grad_buffer = np.full(2, 99.0)
    backward_into_grad([leaf.sum()])
    assert leaf.grad is leaf.grad_buffer and leaf.grad.tolist() == [1.0, 1.0]
    backward_into_grad([leaf.sum()])
    assert leaf.grad is leaf.grad_buffer and leaf.grad.tolist() == [2.0, 2.0]


def test_added_keeps_an_array_that_may_be_changed() -> None:
    total = np.array([1.0, 2.0])
    assert added(total, np.array([1.0, 1.0])) is total and total.tolist() == [2.0, 3.0]
    total.flags.writeable = False
    assert added(total, np.array([1.0, 1.0])).tolist() == [3.0, 4.0]
    assert total.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("sparse_first", [True, False])
def test_added_rows_and_array(sparse_first: bool) -> None:
    rows = SparseRows(np.array([1]), np.array([[2.0]]), (3, 1))
    dense = np.ones((3, 1))
    total = added(rows, dense) if sparse_first else added(dense, rows)
    assert np.asarray(total).tolist() == [[1.0], [3.0], [1.0]]
