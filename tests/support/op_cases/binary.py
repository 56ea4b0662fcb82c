"""Functions of two operands, each of them broadcast, without axes, and empty; where and clip."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(12)
A = rng.uniform(0.6, 1.9, (2, 3))
B = rng.uniform(0.6, 1.9, (2, 3))
MASK = np.array([[True, False, True], [False, False, True]])

NAMES = (
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "fmax", "fmin", "arctan2",
    "hypot", "logaddexp", "logaddexp2", "copysign", "heaviside", "fmod", "remainder", "floor_divide",
)  # fmt: skip
ALIASES = {"divide": "true_divide", "remainder": "mod"}


def several(name):
    op = getattr(ops, name)
    return [
        Case(name, op, [A, B], covers=(name, ALIASES.get(name, name))),
        Case(f"{name}: row", op, [A, B[0]]),
        Case(f"{name}: outer", op, [A[:, :1].copy(), B[:1]]),
        Case(f"{name}: no axes", op, [np.array(A[0, 0]), B]),
        Case(f"{name}: no axes at all", op, [np.array(A[0, 0]), np.array(B[1, 1])]),
        Case(f"{name}: empty", op, [A[:0], B[0]]),
        Case(f"{name}: number right", lambda a: op(a, 1.25), [A]),
        Case(f"{name}: number left", lambda b: op(1.25, b), [B]),
    ]


CASES = [
    *(case for name in NAMES for case in several(name)),
    Case("float_power", ops.float_power, [A, B]),
    Case("ldexp", ops.ldexp, [A], [np.array([1, -2, 3])], covers=("ldexp",)),
    Case("divmod", ops.divmod, [A, B]),
    Case("power: whole number", lambda a: a**3, [A]),
    Case("power: of a number", lambda a: 2**a, [A]),
    Case("power: negative base", lambda a: (-a) ** 2, [A]),
    Case("copysign: negative", lambda a, b: ops.copysign(-a, b), [A, B]),
    Case("where", lambda a, b, c: ops.where(c, a, b), [A, B], [MASK]),
    Case("where: row", lambda a, b, c: ops.where(c, a, b), [A, B[0]], [MASK]),
    Case("where: number", lambda a, c: ops.where(c, a, 0.5), [A], [MASK]),
    Case("where: condition is broadcast", lambda a, c: ops.where(c, a, 0.5), [A[0]], [MASK]),
    Case("clip", lambda a: ops.clip(a, 0.8, 1.5), [A]),
    Case("clip: from below", lambda a: ops.clip(a, 0.8), [A]),
    Case("clip: from above", lambda a: ops.clip(a, high=1.5), [A]),
    Case("clip: limits", ops.clip, [A, np.array([0.7, 1.2, 1.21]), np.array([[1.0], [1.3]])]),
    Case("clip: lower limit", ops.clip, [A, A.T[::-1, ::-1].reshape(2, 3).copy()]),
]
