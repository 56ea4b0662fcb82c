"""Functions of nn.functional that are more than an operation: against formulas, by gradcheck, and torch."""

from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.errors import ArgumentError
from psframework.nn import manual_seed

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4))
TARGET = RNG.random((5, 4))


def test_softmax_along_dim() -> None:
    expected = np.exp(X) / np.exp(X).sum(0)
    np.testing.assert_allclose(F.softmax(X, 0).data, expected)
    np.testing.assert_allclose(F.log_softmax(X, dim=0).data, np.log(expected))
    np.testing.assert_allclose(F.softmax(X).data.sum(1), np.ones(5))


@pytest.mark.parametrize(
    ("pad", "expected"),
    [((1, 2), [(0, 0), (1, 2)]), ((0, 1, 2, 0), [(2, 0), (0, 1)]), ((), [(0, 0), (0, 0)])],
)
def test_pad_begins_with_the_last_axis(pad: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    np.testing.assert_array_equal(F.pad(X, pad, value=2.0).data, np.pad(X, expected, constant_values=2.0))
    np.testing.assert_array_equal(F.pad(X, pad, "replicate").data, np.pad(X, expected, "edge"))


def test_pad_cuts_off_and_refuses() -> None:
    np.testing.assert_array_equal(F.pad(X, (-1, 1, 0, -2)).data, np.pad(X[:-2, 1:], [(0, 0), (0, 1)]))
    for wrong in ((1,), (1, 1) * 3):
        with pytest.raises(ArgumentError, match=r"no pair for each of the last axes of shape \(5, 4\)"):
            F.pad(X, wrong)


def test_cosine_similarity_along_dim() -> None:
    expected = (X * TARGET).sum(0) / np.linalg.norm(X, axis=0) / np.linalg.norm(TARGET, axis=0)
    np.testing.assert_allclose(F.cosine_similarity(X, TARGET, dim=0).data, expected)


def test_dropout_by_the_seed() -> None:
    x = np.ones((100, 100), np.float32)
    manual_seed(1)
    first = F.dropout(x, 0.25).data
    manual_seed(1)
    np.testing.assert_array_equal(F.dropout(x, 0.25).data, first)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (first == 0).mean() == pytest.approx(0.25, abs=0.02)
    np.testing.assert_array_equal(F.dropout(x, 0.25, training=False).data, x)
    own = [F.dropout(x, rng=np.random.default_rng(7)).data for _ in range(2)]
    np.testing.assert_array_equal(own[0], own[1])


def test_batch_norm_moves_the_running_statistics_it_was_given() -> None:
    mean, var = np.zeros(4), np.ones(4)
    out = F.batch_norm(X, mean, var, training=True, momentum=0.5)
    np.testing.assert_allclose(out.data.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(mean, X.mean(0) / 2)
    np.testing.assert_allclose(var, 0.5 + X.var(0, ddof=1) / 2)
    evaluated = F.batch_norm(X, mean, var, np.full(4, 2.0), np.ones(4))
    np.testing.assert_allclose(evaluated.data, (X - mean) / np.sqrt(var + 1e-5) * 2 + 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.batch_norm(X, np.zeros(4), None), "both running_mean and running_var"),
    ],
)
def test_misuse_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()
