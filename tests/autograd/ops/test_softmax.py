import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.softmax import log_softmax, logsumexp, softmax
from psframework.errors import ArgumentError

INF, LOG3 = np.inf, np.log(3)
X = np.random.default_rng(7).standard_normal((2, 3, 4))


def test_values():
    expected = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    np.testing.assert_allclose(softmax(X, 1).data, expected)
    np.testing.assert_allclose(log_softmax(X, 1).data, np.log(expected))


def test_logsumexp_without_overflow_and_of_nothing():
    x = np.array([[1000.0, 1000, 1000], [-1000, -1000, -1000], [-INF, 0, -INF], [INF, 0, 0]])
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(logsumexp(x, 1).data, [1000 + LOG3, -1000 + LOG3, 0, INF])
    assert logsumexp(np.zeros((0, 3))).item() == -INF
    assert logsumexp(np.zeros((0, 3)), 0).tolist() == [-INF] * 3


def test_gradients_of_rows_that_are_all_masked_are_zero():
    t = tensor([[-INF, -INF], [0.0, -INF]], True)
    out = logsumexp(t, 1, keepdims=True)
    assert out.tolist() == [[-INF], [0]]
    out.sum().backward()
    assert t.grad.tolist() == [[0, 0], [1, 0]]
    empty = tensor(np.zeros((2, 0)), True)
    logsumexp(empty, 1).sum().backward()
    assert empty.grad.shape == (2, 0)


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
    for op in (softmax, log_softmax, logsumexp):
        with pytest.raises(ArgumentError, match=words):
            op(x, axis)
