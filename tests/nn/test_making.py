"""Room for layers: as usual, and within a bound."""

import copy

import numpy as np
import pytest

from psframework import nn
from psframework.errors import ArgumentError
from psframework.nn.making import Bound, count, empty, is_bounded, within

HUGE = 1 << 40


def test_as_usual() -> None:
    assert empty(3).dtype == np.float32 and empty((2, 0), np.float16).shape == (2, 0)
    assert not is_bounded()
    count(HUGE, HUGE)


def test_within_a_bound_arrays_are_zeros_and_counted() -> None:
    bound = Bound(100, 1)
    with within(bound):
        assert is_bounded()
        assert empty((4, 3)).tolist() == [[0.0] * 3] * 4 and bound.nbytes == 52
        for shape, dtype in ((HUGE, None), ((1 << 62, 1 << 62), None), (7, np.float64)):
            with pytest.raises(ArgumentError, match="larger than the state"):
                empty(shape, dtype)
        with pytest.raises(ArgumentError):  # as NumPy's numbers 2**16 * 2**16 is 0
            empty((np.int32(1 << 16), np.int32(1 << 16)))  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            empty("ab")  # type: ignore[arg-type]
        with within(None):
            assert not is_bounded() and empty(1000).shape == (1000,)
        count(52)
        with pytest.raises(ArgumentError):
            count(1)
        count(modules=1)
        with pytest.raises(ArgumentError):
            nn.ReLU()
    assert not is_bounded()


@pytest.mark.parametrize(
    "make",
    [
        lambda n: nn.Linear(n, n),
        lambda n: nn.Linear(1, n),
        nn.PReLU,
        lambda n: nn.Conv2d(1, 1, n),
        lambda n: nn.ConvTranspose2d(n, 1, 1),
        nn.BatchNorm1d,
        lambda n: nn.BatchNorm1d(n, affine=False),
        lambda n: nn.GroupNorm(1, n),
        nn.LayerNorm,
        nn.RMSNorm,
        lambda n: nn.Embedding(n, 1),
        lambda n: nn.EmbeddingBag(1, n),
        lambda n: nn.LSTM(1, 1, n),
        lambda n: nn.GRUCell(1, n),
        lambda n: nn.MultiheadAttention(n, 1),
        lambda n: nn.MultiheadAttention(1, 1, kdim=n),
        lambda n: nn.LearnedPositionalEncoding(1, n),
        lambda n: nn.SinusoidalPositionalEncoding(2, n),
        lambda n: nn.RotaryEmbedding(2, n),
        lambda n: nn.TransformerEncoderLayer(1, 1, n),
        lambda n: nn.TransformerEncoder(nn.Linear(1, 1), n),
        lambda n: nn.TransformerEncoder(nn.BatchNorm1d(1, affine=False), n),
        lambda n: nn.TransformerEncoder(nn.ReLU(), n),
    ],
)
def test_no_layer_is_made_beyond_the_bound(make: object) -> None:
    with within(Bound(1 << 16, 1000)), pytest.raises(ArgumentError, match="larger than the state"):
        make(1 << 33)  # type: ignore[operator]


def test_initial_values_are_left_out_and_none_are_drawn() -> None:
    nn.manual_seed(1)
    before = nn.random.get_state()
    with within(Bound(1 << 20, 100)):
        for layer in (nn.Linear(3, 4), nn.GRU(2, 3), nn.Embedding(4, 2), nn.PReLU(), nn.LayerNorm(3)):
            assert all(not parameter.data.any() for parameter in copy.deepcopy(layer).parameters())
        assert not nn.RotaryEmbedding(4, 9).phases.any()
    assert nn.random.get_state() == before
    assert nn.PReLU(2, init=0.5).weight.data.tolist() == [0.5, 0.5]
