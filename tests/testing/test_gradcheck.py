import numpy as np
import pytest

from psframework.autograd import Function, tensor
from psframework.autograd.ops.embedding import embedding
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

X = np.array([[1.0, 2.0], [3.0, 4.0]])


class Wrong(Function):
    """A square whose gradient is off by `factor`."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved[0] * gradient * ctx.factor, None


def test_a_right_gradient_passes_and_inputs_are_restored():
    before = X.copy()
    assert gradcheck(lambda x: x * x, [X]) < 1e-8
    np.testing.assert_array_equal(X, before)


def test_a_wrong_gradient_fails():
    assert gradcheck(lambda x: Wrong.apply(x, 1.0), [X]) < 1e-8
    with pytest.raises(AssertionError, match="input 0: error"):
        gradcheck(lambda x: Wrong.apply(x, 1.00001), [X])


def test_a_gradient_that_is_not_a_number_fails():
    with pytest.raises(AssertionError, match="error inf"):
        gradcheck(lambda x: Wrong.apply(x, np.nan), [X])


def test_a_gradient_that_is_missing_fails():
    with pytest.raises(AssertionError, match="input 1: error"):
        gradcheck(lambda x, y: x + y.detach(), [X, X.copy()])


def test_an_element_that_only_others_hide_is_seen():
    # With equal weights these two errors would cancel.
    class Swapped(Function):
        @staticmethod
        def forward(ctx, x):
            return x * np.array([[1.0, 2.0], [1.0, 1.0]])

        @staticmethod
        def backward(ctx, gradient):
            return gradient * np.array([[2.0, 1.0], [1.0, 1.0]])

    with pytest.raises(AssertionError):
        gradcheck(Swapped.apply, [X])


def test_nothing_to_check():
    with pytest.raises(ArgumentError, match="no float64 array"):
        gradcheck(lambda x: x, [X.astype(np.float32)])


def test_sparse_gradients_are_checked_as_dense_ones():
    ids = np.array([1, 1, 0])
    assert gradcheck(lambda table: embedding(ids, table, sparse=True), [X]) < 1e-8


def test_tensors_are_passed_on():
    rows = tensor(np.array([0, 1, 1]))
    fixed = tensor(np.ones(2), True)
    assert gradcheck(lambda x, i, w: embedding(i, x) * w.detach(), [X, rows, fixed]) < 1e-8


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([X, X[:1]], "inputs 0 and 1 share memory: give a copy"),
        ([np.broadcast_to(X, (2, 2, 2)), X.copy()], "input 0 is read-only: give a copy"),
    ],
)
def test_arrays_that_cannot_be_moved_alone(inputs, words):
    with pytest.raises(ArgumentError, match=words):
        gradcheck(lambda x, y: x * y, inputs)


def test_inputs_are_restored_when_the_function_raises():
    calls = []

    def fail_later(x):
        calls.append(x)
        return x * (1 if len(calls) < 3 else {}["key"])

    before = X.copy()
    with pytest.raises(KeyError):
        gradcheck(fail_later, [X])
    np.testing.assert_array_equal(X, before)
    with pytest.raises(ArgumentError, match="one tensor, not tuple"):
        gradcheck(lambda x: (x, x), [X])
