import numpy as np
import pytest

import psframework as psf


def order_one(x: float) -> float:
    """By its power series."""
    term = total = x / 2
    for k in range(1, 200):
        term *= (x / 2) ** 2 / (k * (k + 1))
        total += term
    return total


@pytest.mark.parametrize("x", [0.0, 1e-8, 0.3, -2.0, 7.9, 8.1, 60.0, 150.0])
def test_the_derivative_is_order_one(x):
    t = psf.tensor([x], requires_grad=True)
    psf.ops.i0(t).sum().backward()
    np.testing.assert_allclose(t.grad, [order_one(x)], rtol=1e-14)


def test_up_to_where_it_overflows():
    t = psf.tensor([700.0], requires_grad=True)
    y = psf.ops.i0(t)
    y.sum().backward()
    # The ratio of orders 1 and 0 for large x, Abramowitz and Stegun 9.7.1.
    np.testing.assert_allclose(t.grad / y.data, [1 - 1 / 1400 - 1 / (8 * 700**2)], rtol=1e-9)
