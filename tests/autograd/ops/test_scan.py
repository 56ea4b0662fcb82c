import ml_dtypes
import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

X = np.random.default_rng(3).uniform(0.5, 1.5, (3, 4))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "diff", "prod"])
@pytest.mark.parametrize("axis", [0, -1])
def test_values_are_numpys(name, axis):
    np.testing.assert_array_equal(getattr(ops, name)(X, axis=axis).data, getattr(np, name)(X, axis=axis))
    whole = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert getattr(ops, name)(whole, axis=axis).dtype == getattr(np, name)(whole, axis=axis).dtype


@pytest.mark.parametrize("zeros", [[], [0], [3], [1, 2], [0, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("op", [ops.prod, ops.cumprod], ids=["prod", "cumprod"])
def test_products_with_zeros_anywhere(op, zeros):
    """The derivative with respect to a zero is the product of the others: nothing is divided by it."""
    x = X.copy()
    x[1, zeros] = 0
    gradcheck(lambda t: op(t, 1), [x])
    gradcheck(op, [x])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_are_summed_in_float32(dtype):
    x = np.full(5000, 0.1, dtype)
    t = tensor(x, True)
    out = ops.cumsum(t)
    exact = np.cumsum(x.astype(np.float64))
    assert out.dtype == dtype
    np.testing.assert_allclose(out.data.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps))
    out[-1].backward()
    assert t.grad.dtype == dtype and (t.grad == 1).all()


@pytest.mark.oracle
def test_gradients_are_torchs():
    torch = pytest.importorskip("torch")
    x = X.copy()
    x[0, 1] = x[2, 0] = x[2, 3] = 0
    for ours, theirs in (
        (lambda t: ops.cumprod(t, 1), lambda t: torch.cumprod(t, 1)),
        (lambda t: ops.cumsum(t, 0), lambda t: torch.cumsum(t, 0)),
        (lambda t: ops.prod(t, 1), lambda t: torch.prod(t, 1)),
        (lambda t: ops.diff(t, 2, 1), lambda t: torch.diff(t, 2, 1)),
    ):
        mine, other = tensor(x, True), torch.tensor(x, requires_grad=True)
        (ours(mine) ** 2).sum().backward()
        (theirs(other) ** 2).sum().backward()
        np.testing.assert_allclose(mine.grad, other.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.cumsum(X, 2), "cumsum: axis 2 of an array of 2 axes"),
        (lambda: ops.prod(X, (0, 0)), "prod: an axis is named twice"),
        (lambda: ops.diff(X, -1), "diff: n must be 0 or more, not -1"),
        (lambda: ops.diff(np.float64(1)), "diff: axis -1 of an array of 0 axes"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
