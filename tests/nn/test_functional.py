"""Functions of nn.functional that are more than an operation: against formulas, by gradcheck, and torch."""

from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError
from psframework.nn import manual_seed
from psframework.testing.gradcheck import gradcheck

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4))
LABELS = np.array([0, 3, 1, 1, 2])
TARGET = RNG.random((5, 4))


def test_softmax_along_dim() -> None:
    expected = np.exp(X) / np.exp(X).sum(0)
    np.testing.assert_allclose(F.softmax(X, 0).data, expected)
    np.testing.assert_allclose(F.log_softmax(X, dim=0).data, np.log(expected))
    np.testing.assert_allclose(F.softmax(X).data.sum(1), np.ones(5))


def test_nll_of_log_softmax_is_cross_entropy() -> None:
    for reduction in ("mean", "sum", "none"):
        composed = F.nll_loss(F.log_softmax(X, 1), LABELS, reduction=reduction)
        np.testing.assert_allclose(composed.data, F.cross_entropy(X, LABELS, reduction=reduction).data)


def test_l1() -> None:
    np.testing.assert_allclose(F.l1_loss(X, TARGET).item(), np.abs(X - TARGET).mean())
    np.testing.assert_allclose(F.l1_loss(X, TARGET, reduction="sum").item(), np.abs(X - TARGET).sum())


def test_binary_cross_entropy_with_logits() -> None:
    probability = 1 / (1 + np.exp(-X))
    expected = -(TARGET * np.log(probability) + (1 - TARGET) * np.log(1 - probability))
    losses = F.binary_cross_entropy_with_logits(X, TARGET, reduction="none")
    np.testing.assert_allclose(losses.data, expected)
    huge = F.binary_cross_entropy_with_logits(np.array([1e4, -1e4]), np.array([1.0, 1.0]), reduction="none")
    np.testing.assert_array_equal(huge.data, [0, 1e4])


def test_gradients() -> None:
    gradcheck(lambda x: F.nll_loss(x, LABELS), [X])
    gradcheck(lambda x: F.l1_loss(x, TARGET), [X])
    gradcheck(lambda x: F.binary_cross_entropy_with_logits(x, TARGET), [X])


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
        (lambda: F.nll_loss(X, LABELS.astype(float)), "needs integer targets of shape"),
        (lambda: F.nll_loss(X, LABELS[:3]), r"shape \(5,\), got int64 of shape \(3,\)"),
        (lambda: F.l1_loss(X, TARGET[0]), r"input has shape \(5, 4\), target \(4,\)"),
        (lambda: F.l1_loss(X, TARGET, reduction="max"), "reduction must be"),
        (lambda: F.batch_norm(X, np.zeros(4), None), "both running_mean and running_var"),
    ],
)
def test_misuse_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.oracle
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("cross_entropy", LABELS),
        ("nll_loss", LABELS),
        ("mse_loss", TARGET),
        ("l1_loss", TARGET),
        ("binary_cross_entropy_with_logits", TARGET),
    ],
)
def test_losses_equal_torchs(name: str, target: np.ndarray, reduction: str) -> None:
    torch = pytest.importorskip("torch")
    x: Tensor = tensor(X, requires_grad=True)
    ours = getattr(F, name)(x, target, reduction=reduction)
    ours.backward(np.ones(ours.shape))
    theirs_x = torch.tensor(X, requires_grad=True)
    theirs = getattr(torch.nn.functional, name)(theirs_x, torch.tensor(target), reduction=reduction)
    theirs.backward(torch.ones_like(theirs))
    np.testing.assert_allclose(ours.data, theirs.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(x.grad, theirs_x.grad.numpy(), rtol=1e-12)
