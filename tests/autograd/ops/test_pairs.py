import ml_dtypes
import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError

INF, NAN = np.inf, np.nan


def gradients(op, *points):
    leaves = [tensor(p, True) for p in points]
    with np.errstate(all="ignore"):
        out = op(*leaves)
        out.sum().backward()
    return [out.data, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize(
    "name", ["fmax", "fmin", "logaddexp", "logaddexp2", "fmod", "remainder", "floor_divide", "copysign"]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_equals_numpy_and_keeps_the_dtype(name, dtype):
    a, b = np.array([-3.5, 2.0, 7.25], dtype), np.array([2.0, -1.5, 3.0], dtype)
    out = getattr(ops, name)(a, b)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.data, getattr(np, name)(a, b))
    assert getattr(ops, name)(tensor(a), 2.0).dtype == dtype


@pytest.mark.oracle
def test_derivatives_at_ties_nans_and_edges_are_torchs():
    torch = pytest.importorskip("torch")
    for ours, theirs, points in (
        (ops.fmax, torch.fmax, ([1.0, 1, NAN, 1, 0], [1.0, 2, 3, NAN, 5])),
        (ops.fmin, torch.fmin, ([1.0, 1, NAN, 1, 9], [1.0, 2, 3, NAN, 5])),
        (ops.remainder, torch.remainder, ([5.0, -5, 5, -5], [3.0, 3, -3, -3])),
        (ops.fmod, torch.fmod, ([5.0, -5, 5, -5], [3.0, 3, -3, -3])),
        (ops.copysign, torch.copysign, ([1.0, 0, -2, 3], [-1.0, -1, -0.0, 0.0])),
        (ops.logaddexp, torch.logaddexp, ([-INF, INF, 1000.0, 3], [0.0, 0, 1000, -INF])),
        (ops.logaddexp2, torch.logaddexp2, ([1.0, 2000.0, -2], [3.0, 2000, 5])),
        (ops.power, torch.pow, ([0.0, 0, 0, -2, -2, 2], [0.0, 2, -1, 2, 0.5, 0])),
        (ops.float_power, torch.float_power, ([0.0, 0.5], [2.0, 3.0])),
    ):
        found = gradients(ours, *points)
        leaves = [torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in points]
        out = theirs(*leaves)
        out.sum().backward()
        for mine, other in zip(found, [out.detach(), *(leaf.grad for leaf in leaves)]):
            np.testing.assert_allclose(mine, other.numpy(), atol=1e-13, err_msg=ours.__name__)


def test_sums_of_exponentials_of_minus_infinity():
    out, a, b = gradients(ops.logaddexp, [-INF], [-INF])
    assert out[0] == -INF and np.isfinite([a[0], b[0]]).all()


def test_integers_that_scale_and_steps():
    exponents = np.array([3, -1])
    t = tensor([1.5, 4.0], True)
    ops.ldexp(t, exponents).sum().backward()
    np.testing.assert_array_equal(t.grad, [8, 0.5])
    assert ops.ldexp(tensor([1.5], dtype=ml_dtypes.bfloat16), 2).data.tolist() == [6]
    with pytest.raises(ArgumentError, match="ldexp"):
        ops.ldexp(t, 0.5)
    out, a, b = gradients(ops.heaviside, [-1.0, 0, 2], [0.25, 0.5, 0.75])
    assert [out.tolist(), a.tolist(), b.tolist()] == [[0, 0.5, 1], [0, 0, 0], [0, 1, 0]]


def test_float_power_is_double():
    t = tensor([2.0], True, dtype=np.float16)
    out = ops.float_power(t, 0.5)
    out.backward()
    assert (out.dtype, t.grad.dtype) == (np.float64, np.float16)


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ArgumentError, match=r"logaddexp: .*\(2,\) float64, \(3,\) float64"):
        ops.logaddexp(np.zeros(2), np.zeros(3))
