"""Losses."""

import numpy as np
from op_case import Case

from psframework.autograd.ops import loss

rng = np.random.default_rng(0)

CASES = [
    Case("mse_loss", loss.mse_loss, [rng.standard_normal((2, 3)), rng.standard_normal((2, 3))]),
    Case("cross_entropy", loss.cross_entropy, [rng.standard_normal((3, 4))], [np.array([0, 3, 1])]),
]
