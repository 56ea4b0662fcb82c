"""ConvTranspose1d and ConvTranspose2d."""

from typing import Any

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.errors import ArgumentError
from psframework.nn import Conv2d, ConvTranspose1d, ConvTranspose2d

rng = np.random.default_rng(0)


def test_it_is_the_transpose_of_the_convolution_with_the_same_weight() -> None:
    forward = Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False, dtype=np.float64)
    back = ConvTranspose2d(6, 4, 3, stride=2, padding=1, groups=2, bias=False, dtype=np.float64)
    back.weight.data = forward.weight.data
    x, y = rng.standard_normal((2, 4, 7, 5)), rng.standard_normal((2, 6, 4, 3))
    np.testing.assert_allclose((forward(x).data * y).sum(), (x * back(y).data).sum())


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((4, 6, 3), {}),
        ((4, 6, 3, 2, 1, 1), {"groups": 2}),
        ((4, 4, 2), {"dilation": 3, "output_padding": 2, "bias": False, "groups": 4}),
    ],
    ids=str,
)
def test_equals_torch(args: tuple[int, ...], options: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    for shape in ((2, 4, 5), (4, 5)):
        assert_module_equals_torch("ConvTranspose1d", *args, shape=shape, **options)
    for shape in ((2, 4, 5, 4), (4, 5, 4)):
        assert_module_equals_torch("ConvTranspose2d", *args, shape=shape, **options)


def test_parameters_are_torchs() -> None:
    layer = ConvTranspose2d(4, 50, 5, groups=2)
    assert layer.weight.shape == (4, 25, 5, 5) and layer.bias is not None
    bound = 1 / np.sqrt(25 * 25)
    for parameter in layer.parameters():
        assert parameter.dtype == np.float32
        assert 0.9 * bound < np.abs(parameter.data).max() <= bound * (1 + 1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((3, 4, 3), {"groups": 2}, "3 and 4 channels must be multiples of groups=2"),
        ((4, 4, 0), {}, "kernel_size=0"),
        ((4, 4, 3), {"stride": 2, "output_padding": 2}, "output_padding=.* must be less than"),
    ],
)
def test_misuse_is_refused(arguments: tuple[int, ...], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ConvTranspose1d(*arguments, **options)


def test_repr_shows_what_differs() -> None:
    assert repr(ConvTranspose1d(1, 2, 3)) == "ConvTranspose1d(1, 2, kernel_size=(3,), stride=(1,))"
    text = repr(ConvTranspose2d(2, 2, 3, 2, 1, 1, 2, False, 2))
    assert "padding=(1, 1), dilation=(2, 2), output_padding=(1, 1), groups=2, bias=False)" in text
