import math

import ml_dtypes
import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.autograd.ops.elementwise import astype, clone
from psframework.errors import ArgumentError

rng = np.random.default_rng(1)
POSITIVE = rng.uniform(0.5, 2, (3, 4))


NAMES = (
    "negative", "positive", "absolute", "fabs", "square", "reciprocal", "sqrt", "cbrt", "exp", "exp2",
    "expm1", "log", "log2", "log10", "log1p",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_equals_numpy_and_keeps_the_dtype(name, dtype):
    x = POSITIVE.astype(dtype)
    out = getattr(ops, name)(x).data
    assert out.dtype == dtype
    exact = getattr(np, name)(x.astype(np.float64))
    np.testing.assert_allclose(out.astype(float), exact, rtol=2 * float(ml_dtypes.finfo(dtype).eps))


def test_erf_is_exact():
    x = np.linspace(-5, 5, 41)
    exact = [math.erf(v) for v in x]
    np.testing.assert_array_equal(ops.erf(x).data, exact)
    np.testing.assert_allclose(ops.erf(x.astype(np.float32)).data, exact, atol=5e-7)


def test_integers_become_what_numpy_makes_of_them():
    whole = np.arange(1, 4)
    for name in NAMES:
        assert getattr(ops, name)(whole).dtype == getattr(np, name)(whole).dtype, name


@pytest.mark.oracle
def test_derivatives_at_the_edges_are_torchs():
    torch = pytest.importorskip("torch")
    for name, points in (
        ("log", [0.0, -1, 1]),
        ("log2", [0.0, -1, 1]),
        ("log1p", [-1.0, 0]),
        ("sqrt", [0.0, -1, 4]),
        ("reciprocal", [0.0, -2]),
        ("abs", [0.0, -2]),
        ("exp", [1000.0, -1000]),
        ("expm1", [0.0, -1000]),
        ("erf", [0.0, 100]),
        ("square", [0.0]),
    ):
        mine, other = tensor(points, True), torch.tensor(points, dtype=torch.float64, requires_grad=True)
        with np.errstate(all="ignore"):
            getattr(ops, name)(mine).sum().backward()
        getattr(torch, name)(other).sum().backward()
        np.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-14, err_msg=name)


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


@pytest.mark.parametrize("name", ["negative", "positive", "sign"])
def test_what_booleans_have_not_is_refused_by_name(name):
    with pytest.raises(ArgumentError, match=f"^{name}: "):
        getattr(ops, name)(np.ones(2, bool))
    assert ops.square(np.ones(2, bool)).dtype == np.int8
