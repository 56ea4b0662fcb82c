"""Losses as modules."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
CHANCES = rng.uniform(0.2, 0.8, (2, 3))
LABELS, SIGNS, WEIGHT = np.array([2, 0]), np.array([1, -1]), np.array([0.5, 2, 1])

CASES = [
    ModuleCase("CrossEntropyLoss", lambda dtype: nn.CrossEntropyLoss(), [X], [LABELS]),
    ModuleCase(
        "CrossEntropyLoss: weight",
        lambda dtype: nn.CrossEntropyLoss(WEIGHT.astype(dtype), label_smoothing=0.1),
        [X],
        [LABELS],
    ),
    ModuleCase("NLLLoss", lambda dtype: nn.NLLLoss(WEIGHT.astype(dtype)), [X], [LABELS]),
    ModuleCase("MSELoss", lambda dtype: nn.MSELoss(), [X, Y]),
    ModuleCase("L1Loss", lambda dtype: nn.L1Loss(reduction="sum"), [X, Y]),
    ModuleCase("SmoothL1Loss", lambda dtype: nn.SmoothL1Loss(beta=0.3), [X, Y]),
    ModuleCase("HuberLoss", lambda dtype: nn.HuberLoss(delta=0.3), [X, Y]),
    ModuleCase("BCELoss", lambda dtype: nn.BCELoss(WEIGHT.astype(dtype)), [CHANCES, CHANCES[::-1]]),
    ModuleCase(
        "BCEWithLogitsLoss",
        lambda dtype: nn.BCEWithLogitsLoss(pos_weight=WEIGHT.astype(dtype)),
        [X, CHANCES],
    ),
    ModuleCase("KLDivLoss", lambda dtype: nn.KLDivLoss(reduction="batchmean"), [X, CHANCES]),
    ModuleCase("CosineEmbeddingLoss", lambda dtype: nn.CosineEmbeddingLoss(-0.9), [X, Y], [SIGNS]),
    ModuleCase("MarginRankingLoss", lambda dtype: nn.MarginRankingLoss(0.3), [X[:, 0], Y[:, 0]], [SIGNS]),
    ModuleCase("CosineSimilarity", lambda dtype: nn.CosineSimilarity(), [X, Y]),
]
