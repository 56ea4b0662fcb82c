"""Initial values: bounds and moments of torch's distributions, seeded."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
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


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"), [(0, 1, -2, 2), (1, 2, -1, 0.5), (0, 1, 3, 9), (5, 1, -1, 1)]
)
def test_truncated_normal(mean: float, std: float, a: float, b: float) -> None:
    values = init.trunc_normal_(np.empty((200, 100)), mean, std, a, b, rng=np.random.default_rng(0))
    assert a <= values.min() and values.max() <= b
    grid = np.linspace(a, b, 10_001)
    density = np.exp(-(((grid - mean) / std) ** 2) / 2)
    expected = (grid * density).sum() / density.sum()
    assert values.mean() == pytest.approx(expected, abs=0.02 * std)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (4, 3, 2)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    matrix = init.orthogonal_(np.empty(shape), gain=2.0).reshape(shape[0], -1)
    gram = matrix @ matrix.T if shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-12)


def test_identities_and_sparse() -> None:
    np.testing.assert_array_equal(init.eye_(np.empty((2, 3))), np.eye(2, 3))
    images = np.random.default_rng(0).standard_normal((1, 4, 5, 5))
    passing = init.dirac_(np.empty((4, 2, 3, 3)), groups=2)
    np.testing.assert_array_equal(F.conv2d(images, passing, padding=1, groups=2).data, images)
    values = init.sparse_(Parameter(np.empty((10, 7), np.float32)), 0.35, std=3.0).data
    assert ((values == 0).sum(0) == 4).all() and values.std() > 1


@pytest.mark.oracle
def test_gains_and_identities_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for name in ("linear", "conv1d", "conv_transpose3d", "sigmoid", "tanh", "relu", "selu", "leaky_relu"):
        assert init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    for shape, groups in [((4, 2, 3), 2), ((5, 3, 4, 4), 1), ((2, 3, 1, 3, 3), 1)]:
        expected = torch.nn.init.dirac_(torch.empty(shape), groups).numpy()
        np.testing.assert_array_equal(init.dirac_(np.empty(shape, np.float32), groups), expected)


def test_gains() -> None:
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    assert init.calculate_gain("tanh") == 5 / 3


def test_bad_arguments() -> None:
    for call, words in [
        (lambda: init.trunc_normal_(np.zeros(3), a=2, b=1), "needs a < b and std > 0"),
        (lambda: init.orthogonal_(np.zeros(3)), r"orthogonal_ needs at least 2 dimensions, not shape \(3,\)"),
        (lambda: init.eye_(np.zeros(3)), "eye_ needs 2 dimensions"),
        (lambda: init.dirac_(np.zeros((3, 3, 3)), 2), "a multiple of groups=2"),
        (lambda: init.sparse_(np.zeros((3, 3)), 2), r"sparsity in \[0, 1\]"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            call()
    with pytest.raises(ArgumentError, match="unknown nonlinearity 'swish'; known: linear"):
        init.calculate_gain("swish")
    with pytest.raises(ArgumentError, match=r"at least 2 dimensions, not of shape \(3,\)"):
        init.kaiming_uniform_(np.zeros(3))
    with pytest.raises(ArgumentError, match='"fan_in" or "fan_out"'):
        init.kaiming_uniform_(np.zeros((3, 3)), mode="fan")
