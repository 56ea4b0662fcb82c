import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError

A, B = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])


@pytest.mark.parametrize("right", [B, tensor(B), 2, np.float32(2)])
def test_comparisons_are_elementwise_constants(right):
    t = tensor(A, True)
    plain = right.data if hasattr(right, "requires_grad") else right
    for ours, theirs in (
        (t < right, plain > A),
        (t <= right, plain >= A),
        (t > right, plain < A),
        (t >= right, plain <= A),
        (t == right, plain == A),
        (t != right, plain != A),
        (right == t, plain == A),
        (right < t, plain < A),
    ):
        assert ours.dtype == np.bool_ and not ours.requires_grad
        np.testing.assert_array_equal(ours.data, theirs)


def test_masks_combine():
    t = tensor(A, True)
    low, high = t < 2.5, t > 1.5
    for ours, theirs in (
        (low & high, [False, True, False]),
        (low | high, [True, True, True]),
        (low ^ high, [True, False, True]),
        (~low, [False, False, True]),
        (high & np.array([True, False, True]), [False, False, True]),
        (np.array([True, False, True]) & high, [False, False, True]),
        (ops.logical_and(t - 1, high), [False, True, True]),
        (ops.logical_not(t - 1), [True, False, False]),
        (ops.logical_xor(low, True), [False, False, True]),
    ):
        assert ours.dtype == np.bool_ and not ours.requires_grad
        np.testing.assert_array_equal(ours.data, theirs)


@pytest.mark.parametrize("axis", [None, 0, (0, 1), -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_counts_are_numpys(axis, keepdims):
    x = np.array([[True, False, True], [True, False, False]])
    for name in ("all", "any", "count_nonzero"):
        expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        np.testing.assert_array_equal(getattr(ops, name)(x, axis, keepdims).data, expected)


def test_what_is_no_number_is_unequal():
    assert (tensor(A) == "a") is False
    assert (tensor(A) != None) is True  # noqa: E711


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tensor(A) < np.zeros(2), r"less: .*broadcast.*\(3,\) float64, \(2,\) float64"),
        (lambda: ~tensor(A), "invert: .*float64"),
        (lambda: tensor(A) & True, "bitwise_and: "),
        (lambda: ops.equal(A, "a"), "equal takes tensors, arrays and numbers, not str"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
