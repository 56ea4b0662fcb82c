import ml_dtypes
import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.autograd.ops import trigonometry
from psframework.testing.gradcheck import gradcheck

UNARY = [
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "arcsinh", "arctanh", "deg2rad",
    "rad2deg", "sinc",
]  # fmt: skip
X = np.linspace(-0.9, 0.9, 7)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_equals_numpy_and_keeps_the_dtype(name, dtype):
    x = X.astype(dtype)
    out = getattr(trigonometry, name)(x)
    exact = getattr(np, name)(x.astype(np.float64))
    assert out.dtype == dtype
    np.testing.assert_allclose(out.data.astype(float), exact, rtol=3 * float(ml_dtypes.finfo(dtype).eps))


def test_the_functions_say_what_they_are():
    assert ops.sin.__name__ == "sin" and ops.sin.__doc__ == "Sine of radians."
    assert ops.degrees is ops.rad2deg and ops.radians is ops.deg2rad


def test_sinc_near_zero_has_a_slope_to_full_precision():
    for dtype, tolerance in ((np.float32, 3e-6), (np.float64, 1e-12)):
        t = tensor([0.0, 1e-6, 1e-3, 0.031, 0.032, 1.0, -2.0], True, dtype=dtype)
        ops.sinc(t).sum().backward()
        z = np.pi * t.data.astype(np.longdouble)
        with np.errstate(invalid="ignore", divide="ignore"):
            closed = np.pi * (np.cos(z) - np.sin(z) / z) / z
        series = -np.pi * (z / 3 - z**3 / 30 + z**5 / 840)
        np.testing.assert_allclose(t.grad, np.where(np.abs(z) < 0.05, series, closed), atol=tolerance)


def test_the_angle_and_distance_of_every_quadrant():
    y, x = np.array([1.0, 1, -1, -1, 2, -2]), np.array([1.0, -1, 1, -1, 0, 0])
    np.testing.assert_array_equal(ops.arctan2(y, x).data, np.arctan2(y, x))
    gradcheck(ops.arctan2, [y, x])
    gradcheck(ops.hypot, [y, x])


@pytest.mark.oracle
def test_derivatives_at_the_edges_are_torchs():
    torch = pytest.importorskip("torch")
    for ours, theirs, points in (
        (ops.arctan2, torch.atan2, ([0.0, 0, 1, -0.0], [0.0, -1, 0, 2])),
        (ops.hypot, torch.hypot, ([0.0, 0, 3], [0.0, 2, 0])),
        (ops.arcsin, torch.asin, ([-1.0, 1, 2],)),
        (ops.arccos, torch.acos, ([-1.0, 1, 2],)),
        (ops.arccosh, torch.acosh, ([1.0, 0.5, 2],)),
        (ops.arctanh, torch.atanh, ([1.0, -1, 0],)),
        (ops.sinc, torch.sinc, ([0.0, 1, -3],)),
    ):
        mine = [tensor(p, True) for p in points]
        other = [torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in points]
        with np.errstate(all="ignore"):
            out = ours(*mine)
            out.sum().backward()
        expected = theirs(*other)
        expected.sum().backward()
        np.testing.assert_allclose(out.data, expected.detach().numpy(), atol=1e-15)
        for a, b in zip(mine, other):
            np.testing.assert_allclose(a.grad, b.grad.numpy(), atol=1e-12, err_msg=ours.__name__)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, bool])
def test_the_slope_of_arctan2_beside_small_integers(kind):
    whole, number = np.array([100, 1, 0]).astype(kind), tensor(np.array([2.0, -3.0, 0.5]), True)
    for sides in ((number, whole), (whole, number)):
        number.grad = None
        ops.arctan2(*sides).sum().backward()
        found, number.grad = number.grad, None
        ops.arctan2(*(side if side is number else side.astype(float) for side in sides)).sum().backward()
        np.testing.assert_allclose(found, number.grad)
