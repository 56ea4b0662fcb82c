"""Pooling and flattening."""

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.errors import ArgumentError
from psframework.nn import AvgPool2d, Flatten, MaxPool2d

X = np.random.default_rng(0).standard_normal((2, 3, 6, 4))


def test_windows_are_as_wide_as_their_stride_by_default() -> None:
    windows = X.reshape(2, 3, 3, 2, 2, 2)
    np.testing.assert_array_equal(MaxPool2d(2)(X).data, windows.max((3, 5)))
    np.testing.assert_allclose(AvgPool2d(2)(X).data, windows.mean((3, 5)))


def test_stride_and_padding() -> None:
    out = MaxPool2d((3, 1), stride=(3, 2), padding=(1, 0))(X).data
    assert out.shape == (2, 3, 2, 2)
    np.testing.assert_array_equal(out[:, :, 0], X[:, :, :2, ::2].max(2))
    padded = AvgPool2d(2, stride=1, padding=1)(X).data
    np.testing.assert_allclose(padded[:, :, 0, 0], X[:, :, 0, 0] / 4)


def test_the_border_never_wins() -> None:
    assert (MaxPool2d(3, 1, 1)(np.full((1, 1, 3, 3), -5.0)).data == -5).all()


@pytest.mark.oracle
def test_equals_torch() -> None:
    pytest.importorskip("torch")
    one, two = {"shape": (2, 3, 9)}, {"shape": (2, 3, 9, 8)}
    for steps in ((2,), (3, 2, 1), (2, 3)):
        for ceil_mode in (False, True):
            more = {"ceil_mode": ceil_mode}
            assert_module_equals_torch("MaxPool1d", *steps, **one, **more)
            assert_module_equals_torch("MaxPool2d", *steps, **two, **more, dilation=2)
            assert_module_equals_torch("AvgPool1d", *steps, **one, **more, count_include_pad=False)
            assert_module_equals_torch("AvgPool2d", *steps, **two, **more, divisor_override=2)
    for kind in ("Avg", "Max"):
        for size in (1, 3, 4):
            assert_module_equals_torch(f"Adaptive{kind}Pool1d", size, **one)
            assert_module_equals_torch(f"Adaptive{kind}Pool2d", (size, None), **two)


def test_flatten() -> None:
    assert Flatten()(X).shape == (2, 72)
    assert Flatten(0, 2)(X).shape == (36, 4)


def test_reprs() -> None:
    assert repr(MaxPool2d(2)) == (
        "MaxPool2d(kernel_size=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=False)"
    )
    assert repr(Flatten()) == "Flatten(start_dim=1, end_dim=-1)"


def test_misuse_is_refused() -> None:
    with pytest.raises(ArgumentError, match="AvgPool2d: kernel_size=0"):
        AvgPool2d(0)
