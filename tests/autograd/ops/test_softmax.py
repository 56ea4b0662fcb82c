import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.softmax import log_softmax, softmax
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

X = np.random.default_rng(7).standard_normal((2, 3, 4))


@pytest.mark.parametrize("op", [softmax, log_softmax], ids=lambda op: op.__name__)
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("x", [X, X[:, ::-1, ::2], X.T, X[:0], X[..., :0]])
def test_gradients(op, axis, x):
    gradcheck(lambda t: op(t, axis), [x])


def test_values():
    expected = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    np.testing.assert_allclose(softmax(X, 1).data, expected)
    np.testing.assert_allclose(log_softmax(X, 1).data, np.log(expected))


def test_large_numbers():
    x = np.array([[1e4, 0, -1e4]], np.float32)
    np.testing.assert_array_equal(softmax(x).data, [[1, 0, 0]])
    np.testing.assert_array_equal(log_softmax(x).data, [[0, -1e4, -2e4]])


@pytest.mark.parametrize("op", [softmax, log_softmax], ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_computed_in_float32(op, dtype):
    t = tensor(np.zeros((1, 5000)), True, dtype=dtype)
    out = op(t)
    out[0, :3].sum().backward()
    assert out.dtype == t.grad.dtype == dtype
    exact = 1 / 5000 if op is softmax else -np.log(5000)
    np.testing.assert_allclose(out.data.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("x", "axis", "words"),
    [(X, 3, "axis 3 of an array of 3 axes"), (np.arange(3), 0, "int64 is not floating")],
)
def test_bad_input(x, axis, words):
    for op in (softmax, log_softmax):
        with pytest.raises(ArgumentError, match=words):
            op(x, axis)
