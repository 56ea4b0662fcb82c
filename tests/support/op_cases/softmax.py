"""Softmax and its logarithm along an axis."""

from functools import partial

import numpy as np
from op_case import Case

from psframework import ops

X = np.random.default_rng(16).standard_normal((2, 3, 4))

CASES = [
    Case(f"{name}{words}", partial(getattr(ops, name), axis=axis), [x])
    for name in ("softmax", "log_softmax")
    for words, x, axis in (
        ("", X, -1), (": first axis", X, 0), (": inner axis", X, 1), (": no rows", X[:0], -1),
        (": no classes", X[..., :0], -1),
    )
]  # fmt: skip
