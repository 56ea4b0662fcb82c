import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.dropout import dropout
from psframework.backend import bfloat16
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(11)
X = np.zeros((4, 3))


def test_dropout():
    ones = np.ones((100, 100), np.float32)
    t = tensor(ones, True)
    out = dropout(t, 0.3, np.random.default_rng(0))
    out.sum().backward()
    np.testing.assert_array_equal(t.grad, out.data)
    np.testing.assert_allclose(np.unique(out.data), [0, 1 / 0.7], rtol=1e-6)
    assert 0.27 < (out.data == 0).mean() < 0.33
    assert out.dtype == np.float32
    again = dropout(ones, 0.3, np.random.default_rng(0))
    np.testing.assert_array_equal(again.data, out.data)
    gradcheck(lambda x: dropout(x, 0.5, np.random.default_rng(1)), [rng.standard_normal((4, 5))[::2, ::-1]])


def test_the_factor_is_not_rounded_to_bfloat16():
    values = tensor(np.linspace(1, 2, 2000).astype(bfloat16), True)
    out = dropout(values, 0.1, np.random.default_rng(0))
    out.sum().backward()
    exact = np.where(out.data == 0, 0, values.data.astype(np.float64) / 0.9)
    assert abs(out.data.astype(np.float64) - exact).sum() < 0.002 * exact.sum()
    assert abs((out.data.astype(np.float64) - exact).sum()) < 2e-4 * exact.sum()
    assert out.dtype == values.grad.dtype == bfloat16


def test_dropout_of_nothing_and_of_all():
    t = tensor(np.ones(10), True)
    assert dropout(t, 0.0) is t and dropout(t, 0.5, training=False) is t
    assert not dropout(t, 1.0, np.random.default_rng(0)).data.any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dropout(X, 1.5), "p=1.5 is no probability"),
        (lambda: dropout(X, 0.5), "pass rng"),
        (lambda: dropout(np.arange(3), 0.5, np.random.default_rng(0)), "int64 is not floating"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
