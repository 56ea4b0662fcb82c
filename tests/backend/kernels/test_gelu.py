import math

import numpy as np
import pytest

from psframework.backend.kernels.gelu import body

X = np.array([-9.0, -1.5, -0.0, 0.3, 2.0, 9.0])


def formula(x, approximate):
    if approximate == "none":
        return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_value_and_derivative(device, kernels, approximate):
    x, h = device.to_device(X), 1e-6
    expected = [formula(v, approximate) for v in X]
    np.testing.assert_allclose(kernels.gelu(x, approximate).tolist(), expected, rtol=1e-12, atol=1e-15)
    slopes = [(formula(v + h, approximate) - formula(v - h, approximate)) / (2 * h) for v in X]
    g = kernels.gelu_gradient(device.full(6, 2.0), x, approximate)
    np.testing.assert_allclose(g.tolist(), 2 * np.array(slopes), rtol=1e-8, atol=1e-9)
    assert kernels.gelu(device.to_device(np.array(0.3)), approximate).shape == ()


def test_16_bits_are_computed_in_32():
    assert "typedef float C;" in body("none", np.dtype(np.float16), False)
    assert "typedef double C;" in body("none", np.dtype(np.float64), True)
