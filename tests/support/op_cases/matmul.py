"""Matrix products."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(24)


def n(*shape):
    return rng.uniform(-0.9, 0.9, shape)


PAIRS = {
    "matrices": (n(2, 4), n(4, 3)),
    "vectors": (n(4), n(4)),
    "row": (n(4), n(4, 3)),
    "column": (n(3, 4), n(4)),
    "batch by matrix": (n(2, 3, 4), n(4, 2)),
    "matrix by batch": (n(3, 4), n(2, 4, 2)),
    "batch by vector": (n(2, 3, 4), n(4)),
    "vector by batch": (n(4), n(2, 4, 3)),
    "batches": (n(2, 3, 4), n(2, 4, 2)),
    "batches broadcast": (n(2, 1, 3, 2), n(3, 2, 2)),
    "one batch": (n(1, 3, 2), n(4, 2, 2)),
    "no rows": (n(0, 4), n(4, 3)),
    "nothing to sum": (n(3, 0), n(0, 2)),
    "no batches": (n(0, 2, 3), n(0, 3, 2)),
}
NUMBERS = (np.array(0.7), n(2, 3))

CASES = [
    *(Case(f"matmul: {name}", ops.matmul, [a, b]) for name, (a, b) in PAIRS.items()),
    Case("matmul: with itself", lambda x: x @ x, [n(3, 3)]),
    Case("linear", ops.linear, [n(3, 4), n(2, 4), n(2)]),
    Case("linear: no bias", ops.linear, [n(3, 4), n(2, 4)]),
    Case("linear: one row", ops.linear, [n(4), n(2, 4), n(2)]),
    Case("linear: more axes", ops.linear, [n(2, 3, 4), n(2, 4), n(2)]),
    Case("linear: more axes, no rows", ops.linear, [n(2, 0, 4), n(2, 4), n(2)]),
    Case("dot", ops.dot, [n(2, 3), n(3, 2)]),
    Case("dot: number", ops.dot, list(NUMBERS)),
    Case("dot: more axes", ops.dot, [n(2, 3, 2), n(2, 2, 3)]),
    Case("dot: more axes by vector", ops.dot, [n(2, 3, 2), n(2)]),
    Case("inner", ops.inner, [n(2, 3), n(4, 3)]),
    Case("inner: vectors", ops.inner, [n(3), n(3)]),
    Case("inner: number", ops.inner, list(NUMBERS)),
    Case("outer", ops.outer, [n(2, 2), n(3)]),
    Case("vdot", ops.vdot, [n(2, 3), n(3, 2)]),
    Case("kron", ops.kron, [n(2, 3), n(2, 2)]),
    Case("kron: fewer axes", ops.kron, [n(2), n(2, 2)]),
    Case("tensordot", ops.tensordot, [n(2, 3, 2), n(3, 2, 2)]),
    Case("tensordot: axes", lambda a, b: ops.tensordot(a, b, ([2, 0], [-2, -1])), [n(2, 3, 4), n(3, 4, 2)]),
    Case("tensordot: one axis", lambda a, b: ops.tensordot(a, b, (1, 0)), [n(2, 3), n(3, 2, 2)]),
    Case("tensordot: outer", lambda a, b: ops.tensordot(a, b, 0), [n(2, 3), n(2)]),
    Case("tensordot: empty", lambda a, b: ops.tensordot(a, b, 1), [n(2, 0), n(0, 2)]),
]
