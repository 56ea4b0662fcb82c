"""Dropout."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

X = np.random.default_rng(0).standard_normal((2, 3, 2, 2))

CASES = [
    ModuleCase("Dropout", lambda dtype: nn.Dropout(0.3), [X], random=True),
    ModuleCase("Dropout: in evaluation", lambda dtype: nn.Dropout(), [X], call=lambda m, x: m.eval()(x) * 1),
    ModuleCase("Dropout1d", lambda dtype: nn.Dropout1d(), [X[0]], random=True),
    ModuleCase("Dropout2d", lambda dtype: nn.Dropout2d(), [X], random=True),
]
