"""Losses equal torch's, values and gradients, over all their options."""

import itertools
from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.autograd import tensor

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((5, 4)), RNG.standard_normal((5, 4))
CHANCES, OTHERS = RNG.uniform(0.05, 0.95, (5, 4)), RNG.dirichlet(np.ones(4), 5)
LABELS = np.array([0, 3, -100, 1, 2])
IMAGES, PIXELS = RNG.standard_normal((3, 4, 2, 2)), RNG.integers(0, 4, (3, 2, 2))
SIGNS = np.where(RNG.random((5, 4)) < 0.5, -1.0, 1.0)
WEIGHTS = np.array([0.5, 2.0, 1.0, 3.0])
REDUCTIONS = {"reduction": ["mean", "sum", "none"]}

# name, arguments, options of which every combination is tried; floating arguments are differentiated
CASES: list[tuple[str, list[np.ndarray], dict[str, list[Any]]]] = [
    (
        "cross_entropy",
        arguments,
        REDUCTIONS | {"weight": [None, WEIGHTS], "ignore_index": ignored, "label_smoothing": [0.0, 0.2]},
    )
    for arguments, ignored in [
        ([X, LABELS], [-100]),
        ([X, np.abs(LABELS) % 4], [-100, 1]),
        ([X, np.full(5, -100)], [-100]),
        ([IMAGES, PIXELS], [-100, 2]),
        ([X[0], LABELS[1]], [-100]),
        ([X, OTHERS], [-100]),
        ([IMAGES, RNG.dirichlet(np.ones(4), (3, 2, 2)).transpose(0, 3, 1, 2)], [-100]),
        ([X[0], OTHERS[0]], [-100]),
        ([X[:0], LABELS[:0]], [-100]),
        ([X[:0], OTHERS[:0]], [-100]),
    ]
]
CASES += [
    ("nll_loss", arguments, REDUCTIONS | {"weight": [None, WEIGHTS], "ignore_index": ignored})
    for arguments, ignored in [
        ([X, LABELS], [-100]),
        ([X, np.full(5, 3)], [3]),
        ([IMAGES, PIXELS], [-100, 2]),
        ([X[0], LABELS[1]], [-100]),
    ]
]
CASES += [
    ("mse_loss", [X, Y], REDUCTIONS | {"weight": [None, CHANCES]}),
    ("l1_loss", [X, Y], REDUCTIONS | {"weight": [None, CHANCES]}),
    ("huber_loss", [X, Y], REDUCTIONS | {"weight": [None, CHANCES], "delta": [1.0, 0.4]}),
    ("smooth_l1_loss", [X, Y], REDUCTIONS | {"beta": [1.0, 0.4, 0.0]}),
    ("binary_cross_entropy", [CHANCES, OTHERS], REDUCTIONS | {"weight": [None, WEIGHTS]}),
    (
        "binary_cross_entropy_with_logits",
        [X, CHANCES],
        REDUCTIONS | {"weight": [None, WEIGHTS], "pos_weight": [None, WEIGHTS]},
    ),
    ("kl_div", [X, OTHERS], {"reduction": ["batchmean", "mean", "sum", "none"]}),
    ("kl_div", [X, Y], {"reduction": ["batchmean", "mean", "sum", "none"], "log_target": [True]}),
    ("cosine_similarity", [X, Y], {"dim": [0, 1, -1], "eps": [1e-8]}),
    ("cosine_embedding_loss", [X, Y, SIGNS[:, 0]], REDUCTIONS | {"margin": [0.0, 0.1]}),
    ("margin_ranking_loss", [X, Y, SIGNS], REDUCTIONS | {"margin": [0.0, 0.3]}),
]
CONSTANT = {"cosine_embedding_loss": 1, "margin_ranking_loss": 1}  # trailing arguments without a gradient


def combinations(options: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(options, values)) for values in itertools.product(*options.values())]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "arguments", "options"), CASES, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CASES)]
)
def test_equals_torchs(name: str, arguments: list[np.ndarray], options: dict[str, list[Any]]) -> None:
    torch = pytest.importorskip("torch")
    differentiated = len(arguments) - CONSTANT.get(name, 0)
    for chosen in combinations(options):
        ours, theirs = [], []
        for place, array in enumerate(arguments):
            wanted = array.dtype == np.float64 and place < differentiated
            ours.append(tensor(array, wanted))
            theirs.append(torch.tensor(array, requires_grad=wanted))
        plain = {key: torch.tensor(v) if isinstance(v, np.ndarray) else v for key, v in chosen.items()}
        found, expected = (
            getattr(F, name)(*ours, **chosen),
            getattr(torch.nn.functional, name)(*theirs, **plain),
        )
        np.testing.assert_allclose(found.data, expected.detach().numpy(), 1e-9, 1e-12, err_msg=str(chosen))
        seed = np.linspace(0.5, 1.5, found.size).reshape(found.shape)
        found.backward(seed)
        expected.backward(torch.tensor(seed))
        for mine, other in zip(ours, theirs):
            if mine.requires_grad and not np.isnan(found.data).any():
                np.testing.assert_allclose(mine.grad, other.grad.numpy(), 1e-9, 1e-12, err_msg=str(chosen))
