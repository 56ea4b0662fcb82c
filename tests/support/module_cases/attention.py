"""Multi-head attention."""

from functools import partial

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 2, 2))
PADDING = np.array([[False, True, False], [False, False, False]])


def to_itself(module, x, padding=None):
    return module(x, x, x, padding, is_causal=True)


CASES = [
    ModuleCase(
        "MultiheadAttention",
        partial(nn.MultiheadAttention, 4, 2),
        [X],
        covers=("MultiheadAttention", "MultiHeadAttention"),
        call=to_itself,
    ),
    ModuleCase(
        "MultiheadAttention: padding", partial(nn.MultiheadAttention, 4, 2), [X], [PADDING], call=to_itself
    ),
    ModuleCase(
        "MultiheadAttention: to another",
        partial(nn.MultiheadAttention, 4, 2, bias=False, kdim=2, vdim=2, batch_first=True),
        [X, np.concatenate([Y, Y[:1] * 2])],
        call=lambda module, x, y: module(x, y, y, need_weights=False)[0],
    ),
    ModuleCase(
        "MultiheadAttention: dropout",
        partial(nn.MultiheadAttention, 4, 2, dropout=0.5),
        [X],
        call=to_itself,
        random=True,
    ),
]
