"""Changes in place of what an operation made: recorded, though they have no public names."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(26)
X, Y, ROW = rng.uniform(0.6, 1.9, (3, 4)), rng.uniform(0.6, 1.9, (3, 4)), rng.uniform(0.6, 1.9, 4)
MASK = X > 1.2


def add(x, y):
    h = ops.clone(x)
    h += y
    return h * h


def subtract(x, y):
    h = ops.clone(x)
    h -= y
    return h * h


def multiply(x, y):
    h = ops.clone(x)
    h *= y
    return h * h


def divide(x, y):
    h = ops.clone(x)
    h /= y
    return h * h


def square(x):
    h = ops.clone(x)
    h *= h
    return h


def put(key):
    def op(x, value, *constants):
        h = ops.clone(x)
        h[constants[0] if constants else key] = value
        return h * h

    return op


CASES = [
    *(Case(f"{op.__name__}: in place", op, [X, Y]) for op in (add, subtract, multiply, divide)),
    *(Case(f"{op.__name__}: in place, row", op, [X, ROW]) for op in (add, subtract, multiply, divide)),
    Case("square: in place", square, [X]),
    Case("where: assigned to a row", put(1), [X, ROW]),
    Case("where: assigned to a slice", put((slice(1, None), slice(None, None, 2))), [X, Y[:2, :2].copy()]),
    Case("where: assigned and broadcast", put(...), [X, np.array(0.7)]),
    Case("where: assigned by a list", put([0, 2]), [X, Y[:2]]),
    Case("where: assigned by places again", put(None), [X, Y], [np.array([0, 2, 0])]),
    Case("where: assigned by a mask", put(None), [X, np.array(0.7)], [MASK]),
]
