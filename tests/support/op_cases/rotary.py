"""Rotation of pairs."""

import numpy as np
from op_case import Case

from psframework.autograd.ops.rotary import rotate_pairs

rng = np.random.default_rng(0)
ANGLES = rng.uniform(-3, 3, (3, 2))

CASES = [
    Case("rotate_pairs", rotate_pairs, [rng.standard_normal((2, 3, 4))], [np.exp(1j * ANGLES)]),
    Case("rotate_pairs: empty", rotate_pairs, [np.zeros((2, 0, 4))], [np.exp(1j * ANGLES[:0])]),
]
