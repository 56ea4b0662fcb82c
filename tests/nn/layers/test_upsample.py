"""Upsample."""

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.errors import ArgumentError
from psframework.nn import Upsample

X = np.random.default_rng(0).standard_normal((2, 3, 4))


def test_the_nearest_element() -> None:
    np.testing.assert_array_equal(Upsample(scale_factor=3)(X).data, X.repeat(3, 2))
    np.testing.assert_array_equal(Upsample(2)(X).data, X[:, :, ::2])


@pytest.mark.oracle
def test_equals_torch() -> None:
    pytest.importorskip("torch")
    assert_module_equals_torch("Upsample", (5, 3), shape=(2, 3, 4, 4))
    assert_module_equals_torch("Upsample", scale_factor=2, shape=(2, 3, 4, 4))


def test_misuse_is_refused() -> None:
    with pytest.raises(ArgumentError, match="either size or scale_factor"):
        Upsample()


def test_repr() -> None:
    assert repr(Upsample(scale_factor=2)) == "Upsample(scale_factor=2, mode='nearest')"
    assert repr(Upsample((2, 3))) == "Upsample(size=(2, 3), mode='nearest')"
