"""Loss modules hand their options to their functions."""

from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.autograd import tensor
from psframework.errors import ArgumentError
from psframework.nn import losses

X, TARGET = np.array([[0.5, -1.0], [2.0, 0.1]]), np.array([[0.1, 1.0], [1.0, 0.5]])
LABELS, WEIGHT, CHANCES = np.array([1, 0]), np.array([2.0, 3.0]), np.array([[0.5, 0.1], [0.9, 0.3]])
SIGNS = np.array([1.0, -1.0])

CASES: list[tuple[Any, Any, list[Any], dict[str, Any]]] = [
    (losses.CrossEntropyLoss, F.cross_entropy, [X, LABELS], {}),
    (
        losses.CrossEntropyLoss,
        F.cross_entropy,
        [X, LABELS],
        {"weight": WEIGHT, "ignore_index": 0, "label_smoothing": 0.1},
    ),
    (losses.NLLLoss, F.nll_loss, [X, LABELS], {"weight": WEIGHT, "ignore_index": 1}),
    (losses.MSELoss, F.mse_loss, [X, TARGET], {}),
    (losses.L1Loss, F.l1_loss, [X, TARGET], {}),
    (losses.SmoothL1Loss, F.smooth_l1_loss, [X, TARGET], {"beta": 0.3}),
    (losses.HuberLoss, F.huber_loss, [X, TARGET], {"delta": 0.3}),
    (losses.BCELoss, F.binary_cross_entropy, [CHANCES, TARGET], {"weight": WEIGHT}),
    (
        losses.BCEWithLogitsLoss,
        F.binary_cross_entropy_with_logits,
        [X, TARGET],
        {"weight": WEIGHT, "pos_weight": WEIGHT},
    ),
    (losses.KLDivLoss, F.kl_div, [X, TARGET], {"log_target": True}),
    (losses.CosineEmbeddingLoss, F.cosine_embedding_loss, [X, TARGET, SIGNS], {"margin": 0.1}),
    (losses.MarginRankingLoss, F.margin_ranking_loss, [X[0], X[1], SIGNS], {"margin": 0.2}),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("kind", "function", "inputs", "options"), CASES)
def test_modules_call_their_functions(kind, function, inputs, options, reduction) -> None:
    expected = function(*inputs, reduction=reduction, **options)
    np.testing.assert_array_equal(kind(reduction=reduction, **options)(*inputs).data, expected.data)


@pytest.mark.parametrize("kind", list(dict.fromkeys(kind for kind, *_ in CASES)))
def test_unknown_reduction(kind) -> None:
    with pytest.raises(ArgumentError, match=f"{kind.__name__}: reduction 'max' is none of .*mean, sum, none"):
        kind(reduction="max")


def test_batchmean_is_of_the_divergence_only() -> None:
    found = losses.KLDivLoss(reduction="batchmean")(X, TARGET)
    assert found.item() == F.kl_div(X, TARGET, reduction="sum").item() / 2


def test_weights_are_buffers() -> None:
    loss = losses.BCEWithLogitsLoss(pos_weight=tensor(WEIGHT))
    assert list(loss.state_dict()) == ["pos_weight"]
    assert loss.half().pos_weight.dtype == np.float16


def test_cosine_similarity() -> None:
    expected = F.cosine_similarity(X, TARGET, 0).data
    np.testing.assert_array_equal(losses.CosineSimilarity(dim=0)(X, TARGET).data, expected)


def test_repr_shows_the_options() -> None:
    assert repr(losses.HuberLoss(delta=2.0)) == "HuberLoss(reduction='mean', delta=2.0)"
    assert repr(losses.NLLLoss(WEIGHT)) == "NLLLoss(ignore_index=-100, reduction='mean')"


def test_inputs_by_name() -> None:
    assert losses.MSELoss()(input=X, target=TARGET).item() == F.mse_loss(X, TARGET).item()
    found = losses.CosineEmbeddingLoss()(X, input2=TARGET, target=SIGNS)
    assert found.item() == F.cosine_embedding_loss(X, TARGET, SIGNS).item()
