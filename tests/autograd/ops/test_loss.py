"""What losses share."""

import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import Tensor
from psframework.autograd.ops.loss import check_reduction, constant_array, floating_pair, loss_node
from psframework.errors import ArgumentError


def test_reductions():
    check_reduction("f", "sum")
    with pytest.raises(ArgumentError, match="f: reduction 'all' is none of mean, sum, none"):
        check_reduction("f", "all")


def test_pairs_have_one_shape_and_floating_dtypes():
    x = np.ones(3, ml_dtypes.bfloat16)
    assert [t.dtype for t in floating_pair("f", x, np.array([True, False, True]))] == [x.dtype] * 2
    with pytest.raises(ArgumentError, match="reshape one"):
        floating_pair("f", x, np.ones((3, 1)))


def test_constants_keep_no_graph():
    assert constant_array("f", "weight", None, np.float32) is None
    assert constant_array("f", "weight", np.ones(2), np.float32).dtype == np.float32
    with pytest.raises(ArgumentError, match=r"f: weight .* pass weight.detach\(\)"):
        constant_array("f", "weight", Tensor(np.ones(2), True), np.float32)


@pytest.mark.parametrize(
    ("reduction", "divisor"), [("sum", None), ("mean", None), ("mean", 7), ("none", None)]
)
def test_a_node_scales_its_derivatives_as_its_value(reduction, divisor):
    x, y = Tensor(np.array([1.0, 2.0, 4.0]), True), Tensor(np.float32([1, 2, 3]), True)
    losses = x.data * y.data
    out = loss_node("product", losses, (x, y), lambda g: (g * y.data, g * x.data), reduction, divisor=divisor)
    scale = {"sum": 1, "none": 1, "mean": 1 / (divisor or 3)}[reduction]
    np.testing.assert_allclose(out.data, losses if reduction == "none" else losses.sum() * scale)
    out.backward(np.ones(out.shape))
    np.testing.assert_allclose(x.grad, y.data * scale)
    assert out.dtype == np.float64 and y.grad.dtype == np.float32
