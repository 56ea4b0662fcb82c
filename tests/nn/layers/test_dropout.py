"""Dropout."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.nn import Dropout, manual_seed

X = np.ones((50, 50), np.float32)


def test_only_in_training() -> None:
    layer = Dropout(0.5)
    assert (layer(X).data == 0).any()
    np.testing.assert_array_equal(layer.eval()(X).data, X)


def test_seeded_and_unbiased() -> None:
    manual_seed(0)
    first = Dropout(0.2)(X).data
    manual_seed(0)
    np.testing.assert_array_equal(Dropout(0.2)(X).data, first)
    assert first.mean() == pytest.approx(1, abs=0.05)


def test_gradient_passes_where_the_value_does() -> None:
    x = tensor(X, requires_grad=True)
    out = Dropout(0.5)(x)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad, out.data)


def test_probability() -> None:
    assert repr(Dropout(0.1)) == "Dropout(p=0.1)"
    with pytest.raises(ArgumentError, match=r"in \[0, 1\], not 1.5"):
        Dropout(1.5)
