"""Conv1d and Conv2d."""

from typing import Any

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.nn import Conv1d, Conv2d

X = np.random.default_rng(0).standard_normal((2, 4, 7, 6))


def reference(layer: Conv2d, x: np.ndarray) -> np.ndarray:
    """One output element after the other."""
    (down, right), (sy, sx), (dy, dx) = layer.padding, layer.stride, layer.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (down, down), (right, right)))
    weight = layer.weight.data
    ky, kx = layer.kernel_size
    rows = (padded.shape[2] - dy * (ky - 1) - 1) // sy + 1
    columns = (padded.shape[3] - dx * (kx - 1) - 1) // sx + 1
    out = np.zeros((len(x), layer.out_channels, rows, columns))
    per_group, outs = weight.shape[1], layer.out_channels // layer.groups
    for n, o, r, c in np.ndindex(*out.shape):
        first = (o // outs) * per_group
        window = padded[n, first : first + per_group, r * sy :: dy, c * sx :: dx][:, :ky, :kx]
        out[n, o, r, c] = (window * weight[o]).sum() + (layer.bias.data[o] if layer.bias is not None else 0)
    return out


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1)},
        {"kernel_size": 2, "dilation": 2, "groups": 2},
        {"kernel_size": 3, "padding": 1, "bias": False},
        {"kernel_size": 1, "groups": 4},
    ],
)
def test_formula(options: dict[str, Any]) -> None:
    layer = Conv2d(4, 8, dtype=np.float64, **options)
    np.testing.assert_allclose(layer(X).data, reference(layer, X), rtol=1e-10, atol=1e-12)


def test_same_keeps_the_size_and_valid_pads_nothing() -> None:
    assert Conv2d(4, 2, (3, 5), padding="same", dtype=np.float64)(X).shape == (2, 2, 7, 6)
    assert Conv2d(4, 2, (2, 4), padding="same", dilation=3, dtype=np.float64)(X).shape == (2, 2, 7, 6)
    assert Conv2d(4, 2, 3, padding="valid", dtype=np.float64)(X).shape == (2, 2, 5, 4)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((4, 6, 3), {}),
        ((4, 6, 2), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False}),
        ((4, 4, 4), {"padding": "same", "groups": 4}),
        ((4, 2, 3), {"padding": 2, "padding_mode": "reflect"}),
        ((4, 2, 2), {"padding": "same", "padding_mode": "replicate"}),
        ((4, 2, 3), {"padding": 1, "padding_mode": "circular", "stride": 2}),
        ((4, 2, 3), {"padding": "valid"}),
    ],
    ids=str,
)
def test_equals_torch(args: tuple[int, ...], options: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    for shape in ((2, 4, 9), (4, 9)):
        assert_module_equals_torch("Conv1d", *args, shape=shape, **options)
    for shape in ((2, 4, 9, 8), (4, 9, 8)):
        assert_module_equals_torch("Conv2d", *args, shape=shape, **options)


def test_parameters_are_torchs() -> None:
    layer = Conv2d(4, 100, 5, groups=2)
    assert layer.weight.shape == (100, 2, 5, 5) and layer.bias is not None
    bound = 1 / np.sqrt(2 * 25)
    for parameter in layer.parameters():
        assert parameter.dtype == np.float32
        assert 0.9 * bound < np.abs(parameter.data).max() <= bound * (1 + 1e-6)


def test_gradients_reach_all_inputs() -> None:
    layer, x = Conv2d(4, 2, 3), tensor(X.astype(np.float32), requires_grad=True)
    layer(x).sum().backward()
    for leaf in (layer.weight, layer.bias, x):
        assert leaf is not None and leaf.grad is not None and leaf.grad.shape == leaf.shape


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((3, 4, 3), {"groups": 2}, "3 and 4 channels must be multiples of groups=2"),
        ((4, 4, 0), {}, "kernel_size=0"),
        ((4, 4, 3), {"stride": (1, 2, 3)}, "stride="),
        ((4, 4, 3), {"padding": "same", "stride": 2}, "padding='same' is no number"),
        ((4, 4, 3), {"padding": "full"}, "padding='full' is no number"),
        ((4, 4, 3), {"padding_mode": "edge"}, "padding_mode='edge' is none of zeros, reflect"),
    ],
)
def test_misuse_is_refused(arguments: tuple[int, ...], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Conv2d(*arguments, **options)


def test_repr_shows_what_differs() -> None:
    assert repr(Conv2d(1, 2, 3)) == "Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))"
    assert repr(Conv1d(1, 2, 3, padding="same")).endswith("stride=(1,), padding=same)")
    text = repr(Conv2d(2, 2, 3, padding=1, dilation=2, groups=2, bias=False))
    assert text.endswith("stride=(1, 1), padding=(1, 1), dilation=(2, 2), groups=2, bias=False)")
