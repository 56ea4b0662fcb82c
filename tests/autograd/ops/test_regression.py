"""Losses of differences: against their formulas."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.regression import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from psframework.errors import ArgumentError

rng = np.random.default_rng(8)
X, TARGET = rng.standard_normal((6, 5)), rng.standard_normal((6, 5))
D = X - TARGET


def huber(d, delta):
    return np.where(np.abs(d) <= delta, d * d / 2, delta * (np.abs(d) - delta / 2))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("loss", "options", "expected"),
    [
        (mse_loss, {}, D * D),
        (l1_loss, {}, np.abs(D)),
        (huber_loss, {"delta": 0.5}, huber(D, 0.5)),
        (smooth_l1_loss, {"beta": 0.5}, huber(D, 0.5) / 0.5),
        (smooth_l1_loss, {"beta": 0}, np.abs(D)),
    ],
)
def test_values(loss, options, expected, reduction):
    found = loss(X, TARGET, reduction=reduction, **options).data
    np.testing.assert_allclose(found, expected if reduction == "none" else getattr(expected, reduction)())


def test_weights():
    weight = rng.uniform(1, 2, X.shape)
    np.testing.assert_allclose(mse_loss(X, TARGET, weight=weight).data, (D * D * weight).sum() / weight.sum())
    np.testing.assert_allclose(huber_loss(X, TARGET, weight=weight).data, (huber(D, 1) * weight).mean())


def test_targets_of_integers_take_the_inputs_dtype():
    x = tensor(np.array([0.5, 2], np.float32), True)
    loss = mse_loss(x, np.array([1, 2]))
    loss.backward()
    assert loss.dtype == x.grad.dtype == np.float32
    np.testing.assert_allclose(x.grad, [-0.5, 0])


def test_the_mean_of_nothing_is_nan():
    assert np.isnan(mse_loss(X[:0], TARGET[:0]).item())


def test_a_mean_over_many_16_bit_errors_does_not_overflow():
    x = tensor(np.full(100_000, 2, np.float16), True)
    loss = mse_loss(x, np.zeros(100_000, np.float16))
    loss.backward()
    assert loss.dtype == np.float16 and loss.item() == 4
    np.testing.assert_allclose(x.grad[0], 4e-5, rtol=0.02)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mse_loss(X, X[0]), r"mse_loss: input \(6, 5\) and target \(5,\) differ"),
        (lambda: l1_loss(X, X, reduction="max"), "l1_loss: reduction 'max' is none of mean, sum, none"),
        (lambda: mse_loss(X, X, weight=np.ones(5)), r"weight \(5,\) for an input \(6, 5\)"),
        (lambda: mse_loss(X, X, weight=tensor(X, True)), r"weight is a constant .* weight.detach\(\)"),
        (lambda: mse_loss(np.arange(3), np.arange(3)), "int64 is not floating: convert"),
        (lambda: huber_loss(X, X, delta=0), "delta must be above 0, not 0"),
        (lambda: smooth_l1_loss(X, X, beta=-1), "beta must not be negative, not -1"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
