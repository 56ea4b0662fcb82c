import numpy as np
import pytest

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


def test_what_is_no_number_is_unequal():
    assert (tensor(A) == "a") is False
    assert (tensor(A) != None) is True  # noqa: E711


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ArgumentError, match="do not broadcast"):
        _ = tensor(A) < np.zeros(2)
