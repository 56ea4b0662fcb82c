"""Activation modules."""

import math

import numpy as np
import pytest

from psframework import nn
from psframework.errors import ArgumentError

X = np.array([[-2.0, -0.5, 0.0, 0.5, 2.0]])
ERF = np.array([[math.erf(v / math.sqrt(2)) for v in X[0]]])
SOFTMAX = np.exp(X) / np.exp(X).sum()


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.ReLU(), np.maximum(X, 0)),
        (nn.GELU(), X * (1 + ERF) / 2),
        (nn.GELU("tanh"), X * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))) / 2),
        (nn.Tanh(), np.tanh(X)),
        (nn.Sigmoid(), 1 / (1 + np.exp(-X))),
        (nn.Softmax(dim=1), SOFTMAX),
        (nn.LogSoftmax(dim=1), np.log(SOFTMAX)),
        (nn.Softmax(0), np.ones_like(X)),
        (nn.SiLU(), X / (1 + np.exp(-X))),
        (nn.LeakyReLU(0.1), np.where(X > 0, X, 0.1 * X)),
        (nn.ELU(0.5), np.where(X > 0, X, 0.5 * np.expm1(X))),
        (nn.Softplus(2), np.log1p(np.exp(2 * X)) / 2),
        (nn.Hardtanh(-1, 0.25), np.clip(X, -1, 0.25)),
    ],
)
def test_formulas(layer: nn.Module, expected: np.ndarray) -> None:
    np.testing.assert_allclose(layer(X).data, expected, rtol=1e-6, atol=1e-12)
    assert list(layer.parameters()) == []


def test_reprs_show_options() -> None:
    assert repr(nn.GELU("tanh")) == "GELU(approximate='tanh')"
    assert repr(nn.LogSoftmax(1)) == "LogSoftmax(dim=1)"
    assert repr(nn.Softplus(2)) == "Softplus(beta=2, threshold=20.0)"
    assert repr(nn.PReLU(3)) == "PReLU(num_parameters=3)"


def test_prelu_learns_its_slope() -> None:
    layer = nn.PReLU(5)
    np.testing.assert_allclose(layer(X).data, np.where(X > 0, X, 0.25 * X))
    layer(X).sum().backward()
    np.testing.assert_allclose(layer.weight.grad, np.minimum(X[0], 0))
    with pytest.raises(ArgumentError, match="1 parameter or more"):
        nn.PReLU(0)


def test_unknown_approximation() -> None:
    with pytest.raises(ArgumentError, match="'quick'"):
        nn.GELU("quick")
