"""Initial values: bounds and moments of torch's distributions, seeded."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.nn import Parameter, init, manual_seed

SHAPE = (400, 50, 3)  # fan in 150, fan out 1200
DRAWS: list[tuple[Callable[..., Any], dict[str, Any], str, float]] = [
    (init.xavier_uniform_, {}, "uniform", math.sqrt(6 / 1350)),
    (init.xavier_uniform_, {"gain": 2.0}, "uniform", 2 * math.sqrt(6 / 1350)),
    (init.xavier_normal_, {}, "normal", math.sqrt(2 / 1350)),
    (init.kaiming_uniform_, {"nonlinearity": "relu"}, "uniform", math.sqrt(6 / 150)),
    (init.kaiming_uniform_, {"a": math.sqrt(5)}, "uniform", 1 / math.sqrt(150)),
    (init.kaiming_uniform_, {"mode": "fan_out", "nonlinearity": "linear"}, "uniform", math.sqrt(3 / 1200)),
    (init.kaiming_normal_, {"nonlinearity": "relu"}, "normal", math.sqrt(2 / 150)),
    (init.normal_, {"std": 3.0}, "normal", 3.0),
    (init.uniform_, {"a": -2.0, "b": 2.0}, "uniform", 2.0),
]


@pytest.mark.parametrize(("draw", "options", "kind", "size"), DRAWS)
def test_distributions(draw: Callable[..., Any], options: dict[str, Any], kind: str, size: float) -> None:
    values = draw(np.empty(SHAPE, np.float32), **options, rng=np.random.default_rng(0))
    assert abs(values.mean()) < 0.02 * size
    if kind == "uniform":
        assert 0.99 * size < np.abs(values).max() <= size * (1 + 1e-6)
        assert values.std() == pytest.approx(size / math.sqrt(3), rel=0.01)
    else:
        assert values.std() == pytest.approx(size, rel=0.01)
        assert np.abs(values).max() > 3.5 * size


def test_in_place_into_tensors_and_arrays() -> None:
    parameter, array = Parameter(np.zeros((2, 3), np.float32)), np.zeros((2, 3), np.float32)
    data, version = parameter.data, parameter.version
    assert init.ones_(parameter) is parameter and parameter.data is data and parameter.version > version
    assert init.constant_(array, 4.0) is array and (array == 4).all()
    assert (init.zeros_(tensor(np.ones(2, np.float32))).data == 0).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_keeps_the_dtype(dtype: Any) -> None:
    assert init.normal_(np.zeros(3, dtype)).dtype == dtype


def test_manual_seed_repeats() -> None:
    def draw() -> np.ndarray:
        return np.asarray(init.normal_(np.empty(5)))

    manual_seed(3)
    first, more = draw(), draw()
    manual_seed(3)
    np.testing.assert_array_equal(draw(), first)
    assert not np.array_equal(first, more)
    manual_seed(4)
    assert not np.array_equal(draw(), first)
    assert init.generator() is init.generator()


def test_gains() -> None:
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    assert init.calculate_gain("tanh") == 5 / 3


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="unknown nonlinearity 'swish'; known: linear"):
        init.calculate_gain("swish")
    with pytest.raises(ArgumentError, match=r"at least 2 dimensions, not of shape \(3,\)"):
        init.kaiming_uniform_(np.zeros(3))
    with pytest.raises(ArgumentError, match='"fan_in" or "fan_out"'):
        init.kaiming_uniform_(np.zeros((3, 3)), mode="fan")
