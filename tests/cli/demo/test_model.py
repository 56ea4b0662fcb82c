"""The demo's network learns, and the same seed gives the same values."""

import numpy as np

import psframework.nn.functional as F
from psframework.autograd import tensor
from psframework.cli.demo.model import accuracy, digits_network, model_arrays
from psframework.data import digits


def test_the_same_seed_gives_the_same_values() -> None:
    first, second, other = (model_arrays(digits_network(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)
    assert sum(array.size for array in first.values()) > 50_000


def test_accuracy_puts_the_mode_back_and_counts_right_answers() -> None:
    model, data = digits_network(), digits()
    before = model_arrays(model)
    x, y = data.x_test[:50], data.y_test[:50]
    score = accuracy(model, x, y)
    assert model.training
    assert 0 <= score <= 1
    assert score * 50 == round(score * 50)
    assert all(np.array_equal(before[name], array) for name, array in model_arrays(model).items())


def test_gradients_reach_every_parameter() -> None:
    model, data = digits_network(), digits()
    F.cross_entropy(model(tensor(data.x_train[:16])), data.y_train[:16]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert np.any(parameter.grad), name
