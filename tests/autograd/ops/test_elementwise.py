import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.elementwise import absolute, astype, clone, exp, log, negative, sqrt
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(1)
POSITIVE = rng.uniform(0.5, 2, (3, 4))


@pytest.mark.parametrize("op", [negative, exp, log, sqrt, absolute, clone], ids=lambda op: op.__name__)
@pytest.mark.parametrize(
    "x", [POSITIVE, POSITIVE[::2, ::-1], POSITIVE.T, np.array(POSITIVE[0, 0]), POSITIVE[:0]]
)
def test_gradients(op, x):
    gradcheck(op, [x])


@pytest.mark.parametrize("op", [negative, exp, log, sqrt, absolute], ids=lambda op: op.__name__)
def test_equals_numpy_and_keeps_the_dtype(op):
    for dtype in (np.float16, np.float32, np.float64):
        x = POSITIVE.astype(dtype)
        out = op(x).data
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, getattr(np, op.__name__)(x))


def test_negative_numbers_in_absolute():
    t = tensor([-2.0, 0.0, 3.0], True)
    abs(t).sum().backward()
    np.testing.assert_array_equal(t.grad, [-1, 0, 1])


def test_astype_passes_gradients_between_floating_dtypes_only():
    t = tensor(POSITIVE, True)
    narrow = t.astype(np.float32)
    assert narrow.dtype == np.float32 and narrow.requires_grad
    narrow.sum().backward()
    assert t.grad.dtype == np.float64
    assert not t.astype(np.int64).requires_grad
    assert astype(t, np.float64) is t


def test_astype_refuses_what_is_no_number():
    with pytest.raises(ArgumentError, match="not supported"):
        astype(tensor(POSITIVE), "U3")


def test_clone_has_memory_of_its_own():
    t = tensor(POSITIVE)
    assert not np.shares_memory(clone(t).data, t.data)
