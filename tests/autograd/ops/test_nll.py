"""Negative log-likelihood."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.nll import nll_loss
from psframework.autograd.ops.softmax import log_softmax
from psframework.errors import ArgumentError

rng = np.random.default_rng(9)
LOGITS, TARGETS = rng.standard_normal((6, 5)), np.array([4, 0, 1, 3, 2, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"weight": np.arange(1.0, 6)}, {"ignore_index": 2}])
def test_of_log_softmax_it_is_cross_entropy(options, reduction):
    found = nll_loss(log_softmax(LOGITS, 1), TARGETS, reduction=reduction, **options).data
    np.testing.assert_allclose(found, cross_entropy(LOGITS, TARGETS, reduction=reduction, **options).data)


def test_nothing_counts():
    t = tensor(LOGITS, True)
    loss = nll_loss(t, np.full(6, 7), ignore_index=7)
    loss.backward()
    assert np.isnan(loss.item()) and not t.grad.any()


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (TARGETS.astype(float), r"nll_loss: targets must be an array of integers.*\(6,\)"),
        (TARGETS[:3], r"nll_loss: logits \(6, 5\) need targets of shape \(6,\), got \(3,\)"),
        (TARGETS + 1, r"nll_loss: targets from 1 to 5 for 5 classes"),
    ],
)
def test_bad_targets(targets, words):
    with pytest.raises(ArgumentError, match=words):
        nll_loss(LOGITS, targets)
