"""Rotation of pairs of features."""

import ml_dtypes
import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.rotary import rotate_pairs
from psframework.errors import ArgumentError

X = np.random.default_rng(0).standard_normal((2, 3, 4))
PHASES = np.exp(1j * np.random.default_rng(1).uniform(-3, 3, (3, 2)))


def test_pairs_are_complex_numbers() -> None:
    out = rotate_pairs(X, PHASES).data
    turned = (X[..., ::2] + 1j * X[..., 1::2]) * PHASES
    np.testing.assert_allclose(out[..., ::2], turned.real, atol=1e-15)
    np.testing.assert_allclose(out[..., 1::2], turned.imag, atol=1e-15)


def test_the_gradient_turns_back() -> None:
    x = tensor(X, requires_grad=True)
    out = rotate_pairs(x, PHASES)
    out.backward(out.data)
    np.testing.assert_allclose(x.grad, X, atol=1e-14)


def test_16_bits_are_computed_in_float32() -> None:
    x = X.astype(ml_dtypes.bfloat16)
    out = rotate_pairs(x, PHASES)
    assert out.dtype == ml_dtypes.bfloat16
    exact = rotate_pairs(x.astype(np.float32), PHASES).data
    np.testing.assert_array_equal(out.data, exact.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("x", "phases", "message"),
    [
        (X[..., :3], PHASES, "not of pairs"),
        (X.astype(int), PHASES, "must be floating"),
        (X, PHASES.real, "phases complex"),
        (X, PHASES[:2], "rotate_pairs: operands could not be broadcast"),
        (X, np.stack([[PHASES, PHASES]] * 3), "phases .* do not fit"),
    ],
)
def test_misuse_is_refused(x: np.ndarray, phases: np.ndarray, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        rotate_pairs(x, phases)
