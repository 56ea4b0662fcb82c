import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.norm import (
    cast_to,
    floating,
    inverse_deviation,
    parameter,
    row_means,
    row_sums,
)
from psframework.errors import ArgumentError

ROWS = np.random.default_rng(2).standard_normal((3, 5))


def test_rows():
    np.testing.assert_allclose(row_means(ROWS), ROWS.mean(1, keepdims=True))
    np.testing.assert_allclose(row_sums(ROWS), ROWS.sum(1))
    assert row_means(ROWS[:, :0]).shape == (3, 1)


def test_inverse_deviation():
    np.testing.assert_allclose(inverse_deviation(np.array([4.0, 0.0]), 0.25), [1 / np.sqrt(4.25), 2])


def test_cast_to():
    assert cast_to(ROWS, ROWS.dtype) is ROWS
    assert cast_to(ROWS, np.dtype(np.float32)).dtype == np.float32


def test_parameter_and_floating():
    assert parameter("op", "weight", None, (3,)) is None
    t = tensor(np.zeros(3), True)
    assert parameter("op", "weight", t, (3,)) is t and floating("op", t) is t
    with pytest.raises(ArgumentError, match=r"op: weight must have shape \(4,\), got \(3,\)"):
        parameter("op", "weight", t, (4,))
    with pytest.raises(ArgumentError, match="op: dtype int64 is not floating"):
        floating("op", np.arange(3))
