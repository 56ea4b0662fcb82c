"""Dropout of channels, by a generator that draws the same at each call; of elements: see `norm.py`."""

import numpy as np
from op_case import Case

import psframework.nn.functional as F

X = np.random.default_rng(0).standard_normal((2, 3, 2, 2))


def seeded(function):
    return lambda x: function(x, 0.5, rng=np.random.default_rng(1))


CASES = [
    Case("dropout: everything", lambda x: F.dropout(x, 1.0), [X[0, 0]]),
    Case("dropout1d", seeded(F.dropout1d), [X[0]]),
    Case("dropout2d", seeded(F.dropout2d), [X]),
]
