"""Comparisons and logic: what they answer has no gradient."""

import numpy as np
from op_case import Case

from psframework import ops

A = np.array([[1.0, -2.0, 3.0], [0.0, 0.5, 3.0]])
B = np.array([0.0, -2.0, 4.0])
P, Q = A > 0, B > 0


def constant(name, inputs, constants=()):
    return Case(name, getattr(ops, name), inputs, constants)


CASES = [
    *(
        constant(name, [A, B])
        for name in (
            "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_and",
            "logical_or", "logical_xor",
        )
    ),
    constant("logical_not", [A]),
    Case("bitwise_and", lambda a, b: (a > 0) & (b > 0), [A, B]),
    Case("bitwise_or", lambda a, b: (a > 0) | (b > 0), [A, B]),
    Case("bitwise_xor", lambda a, b: (a > 0) ^ (b > 0), [A, B]),
    Case("invert", lambda a: ~(a > 0), [A]),
]  # fmt: skip
