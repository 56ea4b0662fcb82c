"""Embedding layers."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

IDS = np.array([[0, 2, 2], [4, 2, 0]])
FLAT, OFFSETS = np.array([1, 1, 4, 0]), np.array([0, 0, 3])
FACTORS = np.random.default_rng(0).uniform(0.5, 2, (2, 3))

CASES = [
    ModuleCase("Embedding", lambda dtype: nn.Embedding(5, 3, dtype=dtype), [], [IDS]),
    ModuleCase("Embedding: sparse", lambda dtype: nn.Embedding(5, 3, sparse=True, dtype=dtype), [], [IDS]),
    ModuleCase("EmbeddingBag", lambda dtype: nn.EmbeddingBag(5, 3, dtype=dtype), [], [FLAT, OFFSETS]),
    ModuleCase(
        "EmbeddingBag: weighted",
        lambda dtype: nn.EmbeddingBag(5, 3, mode="sum", dtype=dtype),
        [FACTORS],
        [IDS],
        call=lambda bag, factors, ids: bag(ids, None, factors),
    ),
]
