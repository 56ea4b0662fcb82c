"""Batch normalization."""

import numpy as np
import pytest
from torch_oracle import assert_module_equals_torch

from psframework.errors import ArgumentError
from psframework.nn import BatchNorm1d, BatchNorm2d, Module

X = np.random.default_rng(0).standard_normal((8, 3, 4, 5)) * 3 + 1
AXES = (0, 2, 3)


def normal(x: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    return (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5)


def test_training_normalizes_by_the_batch_and_moves_the_statistics() -> None:
    layer = BatchNorm2d(3, dtype=np.float64)
    out = layer(X).data
    np.testing.assert_allclose(out, normal(X, X.mean(AXES), X.var(AXES)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(layer.running_mean, 0.1 * X.mean(AXES))
    np.testing.assert_allclose(layer.running_var, 0.9 + 0.1 * X.var(AXES, ddof=1))
    assert layer.num_batches_tracked == 1


def test_evaluation_uses_and_keeps_the_statistics() -> None:
    layer = BatchNorm2d(3, dtype=np.float64)
    layer(X)
    before = layer.state_dict()
    out = layer.eval()(X).data
    np.testing.assert_allclose(out, normal(X, before["running_mean"], before["running_var"]), rtol=1e-9)
    np.testing.assert_equal(layer.state_dict(), before)


def test_momentum_none_averages_all_batches() -> None:
    layer = BatchNorm2d(3, momentum=None, dtype=np.float64)
    layer(X)
    layer(X + 2)
    np.testing.assert_allclose(layer.running_mean, X.mean(AXES) + 1)


def test_without_statistics_evaluation_uses_the_batch() -> None:
    layer = BatchNorm1d(3, affine=False, track_running_stats=False, dtype=np.float64)
    assert layer.state_dict() == {}
    x = X[:, :, 0, 0]
    training = layer(x).data
    np.testing.assert_allclose(training.mean(0), 0, atol=1e-12)
    np.testing.assert_array_equal(layer.eval()(x).data, training)


def test_names_and_initial_values_are_torchs() -> None:
    state = BatchNorm1d(2).state_dict()
    assert list(state) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    np.testing.assert_equal([state[name].tolist() for name in state], [[1, 1], [0, 0], [0, 0], [1, 1], 0])
    assert state["weight"].dtype == np.float32 and state["num_batches_tracked"].dtype == np.int64


def test_state_round_trip_and_reset() -> None:
    layer, other = BatchNorm2d(3), BatchNorm2d(3)
    layer(X.astype(np.float32))
    other.load_state_dict(layer.state_dict())
    np.testing.assert_equal(other.state_dict(), layer.state_dict())
    other.reset_parameters()
    np.testing.assert_equal(other.state_dict(), BatchNorm2d(3).state_dict())


def test_gradients_reach_weight_and_bias() -> None:
    layer = BatchNorm2d(3)
    layer(X.astype(np.float32)).sum().backward()
    assert layer.weight is not None and layer.bias is not None
    np.testing.assert_allclose(layer.bias.grad, np.full(3, X[:, 0].size))
    assert layer.weight.grad is not None


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options", [{}, {"affine": False, "momentum": 0.3}, {"track_running_stats": False, "eps": 0.1}], ids=str
)
def test_equals_torch(options: dict[str, object]) -> None:
    pytest.importorskip("torch")
    for shape in ((5, 3), (4, 3, 5)):
        assert_module_equals_torch("BatchNorm1d", 3, shape=shape, **options)
    assert_module_equals_torch("BatchNorm2d", 3, shape=(4, 3, 2, 3), **options)


def test_three_dimensions() -> None:
    x = X[:, :, :, 0]
    out = BatchNorm1d(3, dtype=np.float64)(x).data
    np.testing.assert_allclose(out.mean((0, 2)), 0, atol=1e-12)


@pytest.mark.parametrize(("layer", "shape"), [(BatchNorm1d(3), (8, 3, 4, 5)), (BatchNorm2d(3), (8, 3))])
def test_wrong_dimensions(layer: Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="dimensions, not shape"):
        layer(np.zeros(shape, np.float32))


def test_channels_must_be_positive() -> None:
    with pytest.raises(ArgumentError, match="at least one channel"):
        BatchNorm2d(0)
