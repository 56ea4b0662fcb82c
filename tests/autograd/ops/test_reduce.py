import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops import reduce
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(2)
X = rng.permutation(24).astype(float).reshape(2, 3, 4)  # no ties, so that max has a derivative
OPS = [reduce.sum, reduce.mean, reduce.max, reduce.min, reduce.var, reduce.std]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1,), (2, 0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients_and_values(op, axis, keepdims):
    gradcheck(lambda x: op(x, axis, keepdims), [X.copy()], step=1e-5)
    expected = getattr(np, op.__name__)(X, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(op(X, axis, keepdims).data, expected)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_gradients_of_strided_arrays(op):
    gradcheck(lambda x: op(x, 1), [X[:, ::-1, ::2]], step=1e-5)
    gradcheck(lambda x: op(x, 0), [X.T], step=1e-5)


def test_no_axes_and_empty():
    gradcheck(reduce.sum, [np.array(2.0)])
    gradcheck(reduce.mean, [np.array(2.0)])
    gradcheck(reduce.max, [np.array(2.0)])
    gradcheck(reduce.sum, [np.zeros((0, 3))])
    gradcheck(lambda x: reduce.sum(x, 0), [np.zeros((0, 3))])
    gradcheck(lambda x: reduce.max(x, 1), [np.zeros((0, 3))])


def test_ddof_is_numpys():
    gradcheck(lambda x: reduce.var(x, 1, ddof=1), [X.copy()], step=1e-5)
    np.testing.assert_allclose(reduce.var(X, ddof=1).data, X.var(ddof=1))


def test_equal_maxima_share_the_gradient():
    t = tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], True)
    t.max(axis=1).sum().backward()
    np.testing.assert_allclose(t.grad, [[0, 0.5, 0.5], [1 / 3] * 3])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", [reduce.sum, reduce.mean, reduce.var], ids=lambda op: op.__name__)
def test_16_bits_accumulate_in_float32(op, dtype):
    x = np.full(10_000, 0.1, dtype)
    x[::2] = 0.3
    t = tensor(x, True)
    out = op(t)
    exact = getattr(np, op.__name__)(x.astype(np.float64))
    assert out.dtype == dtype
    np.testing.assert_allclose(float(out), exact, rtol=float(ml_dtypes.finfo(dtype).eps))
    out.backward()
    assert t.grad.dtype == dtype


def test_integers():
    for dtype in (np.int8, np.uint8, np.bool_):
        for x in (np.ones(300, dtype), np.array(1, dtype)):
            assert reduce.sum(x).dtype == x.sum().dtype and reduce.sum(x).item() == x.size
    assert reduce.mean(np.array([1, 2])).item() == 1.5
    np.testing.assert_array_equal(reduce.argmax(X, 1).data, X.argmax(1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: reduce.sum(X, 3), "sum: axis 3 of an array of 3 axes"),
        (lambda: reduce.mean(X, (0, -3)), "named twice"),
        (lambda: reduce.max(np.zeros((0, 3)), 0), "max: no elements along axis 0"),
        (lambda: reduce.var(np.zeros(1), ddof=1), "at least 2 are needed"),
        (lambda: reduce.sum(X, "a"), "axis 'a'"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
