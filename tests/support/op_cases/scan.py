"""Running sums and products, and differences."""

from functools import partial

import numpy as np
from op_case import Case

from psframework import ops

X = np.random.default_rng(14).uniform(0.5, 1.5, (2, 3, 4)) * np.array([1, -1, 1, 1])
ZEROS = X.copy()
ZEROS[0, 0, 1] = ZEROS[0, 1, 0] = ZEROS[0, 1, 3] = ZEROS[1, 2, 3] = 0

CASES = [
    *(
        Case(f"{name}{words}", partial(getattr(ops, name), axis=axis), [x])
        for name in ("cumsum", "cumprod")
        for words, x, axis in (
            ("", X, None), (": first axis", X, 0), (": last axis", X, -1), (": no axes", np.array(0.7), None),
            (": empty", X[:, :0], 1), (": zeros", ZEROS, 2),
        )
    ),
    Case("prod: a zero", lambda x: ops.prod(x, 2), [ZEROS]),
    Case("prod: zeros", lambda x: ops.prod(x, (0, 2), True), [ZEROS]),
    Case("diff", ops.diff, [X]),
    Case("diff: twice", lambda x: ops.diff(x, 2, axis=1), [X]),
    Case("diff: not at all", lambda x: ops.diff(x, 0), [X]),
    Case("diff: too often", lambda x: ops.diff(x, 3, axis=0), [X]),
]  # fmt: skip
