"""Linear."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.nn import Linear, manual_seed
from psframework.nn.layers.linear import reset_weight_and_bias


def test_formula_and_shapes() -> None:
    layer = Linear(3, 2)
    assert layer.weight.shape == (2, 3) and layer.bias is not None and layer.bias.shape == (2,)
    x = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
    out = layer(x)
    assert out.shape == (4, 5, 2) and out.dtype == np.float32
    np.testing.assert_allclose(out.data, x @ layer.weight.data.T + layer.bias.data, rtol=1e-5, atol=1e-6)


def test_without_bias() -> None:
    layer = Linear(3, 2, bias=False)
    assert layer.bias is None and list(layer.state_dict()) == ["weight"]
    np.testing.assert_array_equal(layer(np.zeros((1, 3), np.float32)).data, [[0, 0]])


def test_gradients_reach_weight_bias_and_input() -> None:
    layer = Linear(3, 2, dtype=np.float64)
    x = tensor(np.ones((4, 3)), requires_grad=True)
    layer(x).sum().backward()
    np.testing.assert_allclose(layer.weight.grad, np.full((2, 3), 4))
    np.testing.assert_allclose(layer.bias.grad, [4, 4])
    np.testing.assert_allclose(x.grad, np.tile(layer.weight.data.sum(0), (4, 1)))


def test_initial_values_are_uniform_within_the_root_of_the_fan_in() -> None:
    layer = Linear(100, 400)
    for parameter in layer.parameters():
        assert 0.09 < np.abs(parameter.data).max() <= 0.1
        assert parameter.data.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.1)
    before = layer.weight.data.copy()
    reset_weight_and_bias(layer.weight, None)
    assert not np.array_equal(layer.weight.data, before)


def test_seeded() -> None:
    manual_seed(0)
    first = Linear(3, 3).state_dict()
    manual_seed(0)
    np.testing.assert_equal(Linear(3, 3).state_dict(), first)


def test_dtype() -> None:
    assert {p.dtype for p in Linear(2, 2, dtype=np.float16).parameters()} == {np.dtype(np.float16)}


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ArgumentError, match="positive sizes, not 0 and 2"):
        Linear(0, 2)
