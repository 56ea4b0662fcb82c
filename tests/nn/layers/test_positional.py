"""Positional encodings: their formulas, and what they are for."""

from collections.abc import Callable

import numpy as np
import pytest

from psframework import nn
from psframework.autograd import tensor
from psframework.errors import ArgumentError


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


def test_sines_and_cosines_of_the_place() -> None:
    layer = nn.SinusoidalPositionalEncoding(6, 50, dtype=np.float64)
    assert layer.state_dict() == {} and layer.table.shape == (50, 6)
    for place in (0, 7, 49):
        for i in range(3):
            angle = place / 10000 ** (2 * i / 6)
            np.testing.assert_allclose(layer.table[place, 2 * i], np.sin(angle), atol=1e-12)
            np.testing.assert_allclose(layer.table[place, 2 * i + 1], np.cos(angle), atol=1e-12)


@pytest.mark.parametrize("kind", ["SinusoidalPositionalEncoding", "LearnedPositionalEncoding"])
def test_each_place_gets_its_row(kind: str) -> None:
    nn.manual_seed(0)
    first = getattr(nn, kind)(4, 9, batch_first=True, dtype=np.float64)
    nn.manual_seed(0)
    second = getattr(nn, kind)(4, 9, dtype=np.float64)
    rows = (first.table if hasattr(first, "table") else first.weight.data)[:5]
    x = draw(3, 5, 4)
    np.testing.assert_array_equal(first(x).data, x + rows)
    np.testing.assert_array_equal(second(x.swapaxes(0, 1)).data, (x + rows).swapaxes(0, 1))
    np.testing.assert_array_equal(first(x[0]).data, second(x[0]).data)
    assert first(x.astype(np.float32)).dtype == (np.float32 if hasattr(first, "table") else np.float64)


def test_learned_rows_get_the_sum_over_the_batch() -> None:
    layer = nn.LearnedPositionalEncoding(4, 9, batch_first=True)
    layer(draw(3, 5, 4)).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, [[3] * 4] * 5 + [[0] * 4] * 4)
    assert list(layer.state_dict()) == ["weight"] and layer.weight.data.std() < 0.05


def test_rotary_products_depend_on_the_distance_only() -> None:
    layer = nn.RotaryEmbedding(6, 100)
    q, k = draw(6), draw(6)

    def product(at: int, other: int) -> float:
        turned = layer(np.tile(q, (100, 1))).data[at] @ layer(np.tile(k, (100, 1))).data[other]
        return float(turned)

    assert product(3, 1) == pytest.approx(product(97, 95), rel=1e-9)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-3)
    np.testing.assert_array_equal(layer(q[None]).data[0], q)


def test_rotary_turns_pairs_by_the_papers_angles() -> None:
    x = tensor(draw(2, 3, 5, 4), requires_grad=True)
    out = nn.RotaryEmbedding(4)(x, offset=2)
    for place in range(5):
        for i in range(2):
            angle = (place + 2) / 10000 ** (2 * i / 4)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            pair = x.data[..., place, 2 * i : 2 * i + 2]
            np.testing.assert_allclose(out.data[..., place, 2 * i : 2 * i + 2], pair @ turn.T, atol=1e-12)


def test_reprs() -> None:
    assert repr(nn.RotaryEmbedding(4, 7)) == "RotaryEmbedding(4, max_len=7)"
    assert repr(nn.SinusoidalPositionalEncoding(4, 7)) == "SinusoidalPositionalEncoding(4, max_len=7)"
    assert repr(nn.LearnedPositionalEncoding(4, 7)) == "LearnedPositionalEncoding(4, max_len=7)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.SinusoidalPositionalEncoding(5), "even number of features"),
        (lambda: nn.RotaryEmbedding(4, 0), "even number of features and places, not 4 and 0"),
        (lambda: nn.LearnedPositionalEncoding(0, 3), "positive sizes"),
        (lambda: nn.LearnedPositionalEncoding(4, 3)(draw(4, 1, 4)), "places 0 to 3 do not fit max_len=3"),
        (lambda: nn.RotaryEmbedding(4, 6)(draw(2, 3, 4), offset=4), "places 4 to 6 do not fit max_len=6"),
        (lambda: nn.RotaryEmbedding(4)(draw(3, 6)), "input must have 4 features"),
    ],
)
def test_misuse_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
