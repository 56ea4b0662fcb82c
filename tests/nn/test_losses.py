"""Loss modules call their functions."""

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import nn
from psframework.errors import ArgumentError

X, TARGET = np.array([[0.5, -1.0], [2.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.5]])
LABELS = np.array([1, 0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("kind", "function", "target"),
    [
        (nn.CrossEntropyLoss, F.cross_entropy, LABELS),
        (nn.NLLLoss, F.nll_loss, LABELS),
        (nn.MSELoss, F.mse_loss, TARGET),
        (nn.L1Loss, F.l1_loss, TARGET),
        (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits, TARGET),
    ],
)
def test_modules_call_their_functions(kind, function, target, reduction) -> None:
    expected = function(X, target, reduction=reduction)
    np.testing.assert_array_equal(kind(reduction=reduction)(X, target).data, expected.data)


def test_unknown_reduction() -> None:
    with pytest.raises(ArgumentError, match="'max'"):
        nn.MSELoss(reduction="max")
