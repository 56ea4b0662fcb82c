"""Dropout."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.nn import Dropout, manual_seed
from psframework.nn.layers.dropout import Dropout1d, Dropout2d

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


def test_a_generator_of_its_own() -> None:
    """Its masks depend on its seed alone, whoever else draws."""
    layers = [Dropout(0.5, generator=np.random.default_rng(7)) for _ in range(2)]
    first = layers[0](X).data
    manual_seed(3)
    Dropout(0.5)(X)
    np.testing.assert_array_equal(layers[1](X).data, first)
    assert not np.array_equal(layers[1](X).data, first)


def test_a_layer_given_a_generator_repeats_after_its_state_is_set_back() -> None:
    layer = Dropout(0.5, generator=np.random.default_rng(7))
    state = layer.generator.bit_generator.state
    first = layer(X).data
    layer.generator.bit_generator.state = state
    np.testing.assert_array_equal(layer(X).data, first)


@pytest.mark.parametrize(
    ("layer", "shape", "channels"),
    [
        (Dropout1d(0.5), (20, 30, 4), 2),
        (Dropout1d(0.5), (600, 4), 1),
        (Dropout2d(0.5), (20, 30, 2, 3), 2),
        (Dropout2d(0.5), (600, 2, 3), 1),
    ],
)
def test_whole_channels(layer, shape, channels) -> None:
    x = tensor(np.ones(shape, np.float32), requires_grad=True)
    out = layer(x)
    flat = out.data.reshape(*shape[:channels], -1)
    assert (flat == flat[..., :1]).all() and set(np.unique(flat)) == {0, 2}
    assert (flat == 0).mean() == pytest.approx(0.5, abs=0.1)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad, out.data)
    assert layer.eval()(x) is x
    layer.train()
    with pytest.raises(ArgumentError, match=r"dropout[12]d takes . or . dimensions, not shape \(3,\)"):
        layer(np.ones(3))
