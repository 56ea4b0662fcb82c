import ml_dtypes
import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor

X = np.array([-2.5, -1.2, -0.0, 0.5, 1.5, 2.7])


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "trunc", "rint"])
def test_values_are_numpys_and_the_derivative_is_zero(name):
    t = tensor(X, True)
    out = getattr(ops, name)(t)
    np.testing.assert_array_equal(out.data, getattr(np, name)(X))
    out.sum().backward()
    np.testing.assert_array_equal(t.grad, np.zeros(6))


def test_round_to_places():
    t = tensor(X, True)
    np.testing.assert_array_equal(ops.round(t).data, np.round(X))
    np.testing.assert_array_equal(ops.round(np.array([1.24, 15.26]), 1).data, [1.2, 15.3])
    ops.round(t, 1).sum().backward()
    assert not t.grad.any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_nan_to_num_uses_the_limits_of_the_dtype(dtype):
    t = tensor([np.nan, np.inf, -np.inf, 2.0], True, dtype=dtype)
    out = ops.nan_to_num(t)
    limit = ml_dtypes.finfo(dtype).max
    assert out.dtype == dtype and out.data.tolist() == [0, limit, -limit, 2]
    out.sum().backward()
    assert t.grad.tolist() == [0, 0, 0, 1]
    assert ops.nan_to_num(t, nan=1, posinf=5, neginf=6).data.tolist() == [1, 5, 6, 2]


def test_what_is_finite_is_a_constant():
    t = tensor([np.nan, np.inf, 1.0], True)
    for name in ("isnan", "isinf", "isfinite"):
        out = getattr(ops, name)(t)
        assert out.dtype == np.bool_ and not out.requires_grad
        np.testing.assert_array_equal(out.data, getattr(np, name)(t.data))
