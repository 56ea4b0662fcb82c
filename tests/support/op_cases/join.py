"""Joining and cutting."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(21)
A, B, ROW = rng.standard_normal((2, 4)), rng.standard_normal((3, 4)), rng.standard_normal(4)
CUBE, NUMBER = rng.standard_normal((2, 3, 4)), np.array(0.7)

CASES = [
    Case("concatenate", lambda *xs: ops.concatenate(xs), [A, B]),
    Case("concatenate: last axis", lambda *xs: ops.concatenate(xs, -1), [A, B[:2, :1].copy(), A]),
    Case("concatenate: with an empty one", lambda *xs: ops.concatenate(xs), [A, B[:0]]),
    Case("concatenate: one", lambda x: ops.concatenate([x, x]), [A]),
    Case("stack", lambda *xs: ops.stack(xs), [A, A[::-1].copy()]),
    Case("stack: last axis", lambda *xs: ops.stack(xs, -1), [A, A[::-1].copy()]),
    Case("stack: numbers", lambda *xs: ops.stack(xs), [NUMBER, np.array(-1.5)]),
    Case("hstack", lambda *xs: ops.hstack(xs), [A, B[:2]]),
    Case("hstack: vectors", lambda *xs: ops.hstack(xs), [ROW, ROW[:2].copy(), NUMBER]),
    Case("vstack", lambda *xs: ops.vstack(xs), [A, ROW]),
    Case("dstack", lambda *xs: ops.dstack(xs), [A, A[::-1].copy()]),
    Case("split", lambda x: ops.split(x, 2, -1), [A]),
    Case("split: indices", lambda x: ops.split(x, [1, 1, 3], -1), [A]),
    Case("split: empty", lambda x: ops.split(x, 2), [A[:0]]),
    Case("array_split", lambda x: ops.array_split(x, 2, 1), [CUBE]),
    Case("chunk", lambda x: ops.chunk(x, 3, -1), [CUBE]),
    Case("unbind", lambda x: ops.unbind(x, 1), [CUBE]),
    Case("unbind: one is used", lambda x: ops.unbind(x)[1], [CUBE]),
]
