import math

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.activation import gelu, relu, sigmoid
from psframework.errors import ArgumentError

X = np.random.default_rng(6).standard_normal((3, 4)) * 2


def test_relu_at_zero():
    t = tensor([-1.0, 0.0, 1.0], True)
    t.relu().sum().backward()
    np.testing.assert_array_equal(t.grad, [0, 0, 1])


def test_sigmoid_does_not_overflow():
    with np.errstate(all="raise", under="ignore"):
        out = sigmoid(np.array([-1000.0, -50, 0, 50, 1000]))
    np.testing.assert_allclose(out.data, [0, math.exp(-50), 0.5, 1, 1], rtol=1e-12)


def test_gelu_values():
    x = np.linspace(-6, 6, 101)
    exact = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    np.testing.assert_allclose(gelu(x).data, exact, atol=1e-15)
    np.testing.assert_allclose(gelu(x.astype(np.float32)).data, exact, atol=1e-6)
    np.testing.assert_allclose(gelu(x, "tanh").data, exact, atol=5e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gelu(X, "exact"), "neither 'none' nor 'tanh'"),
        (lambda: gelu(np.arange(3)), "dtype int64 is not floating"),
        (lambda: relu([1.0]), "relu takes a tensor or an array, not list"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
