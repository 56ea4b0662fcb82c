import numpy as np
import pytest
from torch_oracle import assert_equals_torch

from psframework.autograd.ops.interpolate import interpolate
from psframework.errors import ArgumentError

rng = np.random.default_rng(18)
X = rng.standard_normal((2, 3, 4, 5))


def test_whole_factors_repeat():
    np.testing.assert_array_equal(interpolate(X, scale_factor=2).data, X.repeat(2, 2).repeat(2, 3))
    np.testing.assert_array_equal(interpolate(X, (8, 5)).data, X.repeat(2, 2))
    np.testing.assert_array_equal(interpolate(X, (2, 5)).data, X[:, :, ::2])


@pytest.mark.oracle
def test_equals_torch():
    theirs = pytest.importorskip("torch").nn.functional.interpolate
    for size in (1, 3, 7, 12, (4, 5), (9, 2)):
        assert_equals_torch(interpolate, theirs, {"input": X}, size=size)
    for factor in (1, 2, 1.5, 0.5, (2.5, 0.4)):
        assert_equals_torch(interpolate, theirs, {"input": X}, scale_factor=factor)
        if not isinstance(factor, tuple):
            assert_equals_torch(interpolate, theirs, {"input": X[0]}, scale_factor=factor)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interpolate(X), "either size or scale_factor"),
        (lambda: interpolate(X, 2, 2), "either size or scale_factor"),
        (lambda: interpolate(X, 2, mode="bilinear"), "mode='bilinear' is not offered"),
        (lambda: interpolate(X, (1, 2, 3)), "size="),
        (lambda: interpolate(X, scale_factor=-1), "scale_factor=-1 must be above 0"),
        (lambda: interpolate(X[0, 0], 2), r"must be floating, \(batch, channels, \.\.\.\)"),
        (lambda: interpolate(X.astype(int), 2), "must be floating"),
        (lambda: interpolate(X[:, :, :0], 2), "images with elements"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
