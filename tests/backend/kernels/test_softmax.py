"""Formulas in NumPy, at the edges; tests/autograd/ops/test_fused.py has the ordinary cases."""

import numpy as np
import pytest

ROWS = np.array([[1e4, 1e4 - 1, -1e4], [-np.inf, 0.0, 3.0], [np.nan, 1.0, 2.0], [-np.inf] * 3])


def reference(x):
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)


def test_edges(device, kernels):
    x = device.to_device(ROWS)
    np.testing.assert_allclose(device.asnumpy(kernels.softmax(x)), reference(ROWS), rtol=1e-14)
    with np.errstate(divide="ignore"):
        expected = np.log(reference(ROWS))
    np.testing.assert_allclose(device.asnumpy(kernels.log_softmax(x))[1:], expected[1:], rtol=1e-13)
    assert device.asnumpy(kernels.log_softmax(x))[0, 2] == pytest.approx(-2e4, abs=1)


def test_strided_empty_and_without_axes(device, kernels):
    x = device.to_device(np.arange(24.0).reshape(2, 3, 4))
    turned = x.transpose(2, 0, 1)
    expected = reference(device.asnumpy(turned).reshape(8, 3)).reshape(4, 2, 3)
    np.testing.assert_allclose(device.asnumpy(kernels.softmax(turned)), expected, rtol=1e-14)
    assert kernels.softmax(device.zeros((0, 3))).shape == (0, 3)
    assert kernels.softmax(device.zeros(())).item() == 1


def test_cross_entropy(device, kernels):
    x = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    labels = np.array([2, -100, 7])
    there = device.to_device(x), device.to_device(labels)
    losses, tops, sums = kernels.cross_entropy(*there, -100)
    np.testing.assert_allclose(losses.tolist(), [-np.log(reference(x)[0, 2]), 0, np.nan], rtol=1e-14)
    for scales in ([0.5], [0.5, 1.0, 1.0]):
        g = kernels.cross_entropy_gradient(*there, (tops, sums), device.to_device(np.array(scales)), -100)
        np.testing.assert_allclose(device.asnumpy(g)[0], (reference(x)[0] - [0, 0, 1]) * 0.5, rtol=1e-14)
        assert device.asnumpy(g)[1].tolist() == [0, 0, 0]
