"""Fully connected layers."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(0)

CASES = [
    ModuleCase("Linear", lambda dtype: nn.Linear(4, 3, dtype=dtype), [rng.standard_normal((2, 4))]),
    ModuleCase(
        "Linear: no bias, more axes",
        lambda dtype: nn.Linear(4, 3, bias=False, dtype=dtype),
        [rng.standard_normal((2, 2, 4))],
    ),
]
