"""Losses of probabilities: their limits, and what they refuse."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.likelihood import binary_cross_entropy, binary_cross_entropy_with_logits, kl_div
from psframework.errors import ArgumentError

X = np.random.default_rng(3).standard_normal((5, 4))
TARGET = np.random.default_rng(4).random((5, 4))
CHANCE = 1 / (1 + np.exp(-X))


def test_both_kinds_of_binary_cross_entropy_are_one_formula():
    expected = -(TARGET * np.log(CHANCE) + (1 - TARGET) * np.log(1 - CHANCE))
    for found in (
        binary_cross_entropy(CHANCE, TARGET, reduction="none"),
        binary_cross_entropy_with_logits(X, TARGET, reduction="none"),
    ):
        np.testing.assert_allclose(found.data, expected)
    weighted = binary_cross_entropy_with_logits(X, TARGET, np.full(4, 2.0), pos_weight=np.array(1.0))
    np.testing.assert_allclose(weighted.item(), 2 * expected.mean())


@pytest.mark.filterwarnings("error")
def test_large_logits_do_not_overflow():
    x = tensor(np.array([1e4, -1e4, 1e4]), True)
    losses = binary_cross_entropy_with_logits(x, np.array([1.0, 1.0, 0.0]), reduction="none")
    losses.backward(np.ones(3))
    np.testing.assert_array_equal(losses.data, [0, 1e4, 1e4])
    np.testing.assert_array_equal(x.grad, [0, -1, 1])


@pytest.mark.filterwarnings("error")
def test_certain_probabilities_have_limited_losses():
    x = tensor(np.array([1.0, 0.0]), True)
    losses = binary_cross_entropy(x, np.array([0.0, 0.0]), reduction="none")
    losses.backward(np.ones(2))
    assert losses.tolist() == [100, 0] and np.isfinite(x.grad).all()


@pytest.mark.filterwarnings("error")
def test_classes_without_a_chance_add_nothing_to_a_divergence():
    logs, target = np.log(np.array([[0.5, 0.25, 0.25]])), np.array([[0.5, 0.5, 0.0]])
    np.testing.assert_allclose(kl_div(logs, target, reduction="batchmean").item(), 0.5 * np.log(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: binary_cross_entropy(X, TARGET), r"in \[0, 1\]: apply a sigmoid"),
        (lambda: binary_cross_entropy(CHANCE, TARGET[0]), r"\(5, 4\) and target \(4,\) differ in shape"),
        (
            lambda: binary_cross_entropy_with_logits(X, TARGET, np.ones(5)),
            r"weight \(5,\) does not broadcast",
        ),
        (lambda: binary_cross_entropy_with_logits(X, TARGET, pos_weight=np.ones((2, 5, 4))), "pos_weight"),
        (lambda: kl_div(X, TARGET, reduction="max"), "'max' is none of batchmean, mean, sum, none"),
        (lambda: kl_div(np.array(1.0), np.array(1.0), reduction="batchmean"), "needs a batch axis"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
