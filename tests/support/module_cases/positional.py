"""Positional encodings."""

from functools import partial

import numpy as np
from module_case import ModuleCase

from psframework import nn

X = np.random.default_rng(0).standard_normal((2, 3, 4))

CASES = [
    ModuleCase("SinusoidalPositionalEncoding", partial(nn.SinusoidalPositionalEncoding, 4, 5), [X]),
    ModuleCase("LearnedPositionalEncoding", partial(nn.LearnedPositionalEncoding, 4, 5), [X]),
    ModuleCase("RotaryEmbedding", lambda dtype: nn.RotaryEmbedding(4, 5), [X]),
]
