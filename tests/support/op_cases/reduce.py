"""Reductions over all axes, one and several, kept and not."""

from functools import partial

import numpy as np
from op_case import Case

import psframework.nn.functional as F
from psframework import ops

rng = np.random.default_rng(13)
# No ties, also in 16 bits, so that extremes have derivatives.
X = (rng.permutation(24).reshape(2, 3, 4) - 11.5) / 8
NAMES = ("sum", "mean", "max", "min", "var", "std", "prod", "logsumexp", "norm", "ptp", "average")
ALIASES = {"max": "amax", "min": "amin"}
EMPTY = ("sum", "prod", "logsumexp", "norm")


def several(name):
    op = getattr(ops, name)
    axis = {"norm": 1}.get(name, (0, -1))
    cases = [
        Case(name, op, [X], covers=(name, ALIASES.get(name, name))),
        Case(f"{name}: one axis", lambda x: op(x, axis=1), [X]),
        Case(f"{name}: axes kept", lambda x: op(x, axis=axis, keepdims=True), [X]),
        Case(f"{name}: no axes", op, [np.array(0.7)]) if name != "std" else None,
        Case(f"{name}: empty", lambda x: op(x, axis=0), [X[:0]]) if name in EMPTY else None,
        Case(f"{name}: nothing to reduce", lambda x: op(x, axis=1), [X[:0]]),
    ]
    return [case for case in cases if case is not None]


INDICES = [
    Case(f"{name}{words}", partial(getattr(ops, name), **options), [X])
    for name in ("argmax", "argmin")
    for words, options in (("", {}), (": axis", {"axis": 1}), (": kept", {"axis": -1, "keepdims": True}))
]
WEIGHTS = np.array([0.5, 1.0, 2.0])

CASES = [
    *(case for name in NAMES for case in several(name)),
    *INDICES,
    Case("var: ddof", lambda x: ops.var(x, 1, ddof=1), [X]),
    Case("std: ddof", lambda x: ops.std(x, (0, 2), True, 1), [X]),
    Case("average: weights", lambda x, w: ops.average(x, 1, w), [X, WEIGHTS]),
    Case("average: weights of all", lambda x, w: ops.average(x, (0, 2), w, True), [X, np.exp(X)]),
    Case("norm: sum", lambda x: ops.norm(x, 1, 2), [X]),
    Case("norm: third power", lambda x: ops.norm(x, 3, 0), [X]),
    Case("norm: largest", lambda x: ops.norm(x, np.inf, 2), [X + 0.01]),
    Case("norm: smallest", lambda x: ops.norm(x, -np.inf, 0, True), [X + 0.01]),
    Case("normalize", lambda x: F.normalize(x, dim=1), [X]),
    Case("normalize: p", lambda x: F.normalize(x, 1, -1), [X]),
    Case("all", lambda x: ops.all(x > 0, 1), [X]),
    Case("any", lambda x: ops.any(x > 0, 1), [X]),
    Case("all: kept", lambda x: ops.all(x > 0, -1, True), [X]),
    Case("any: kept", lambda x: ops.any(x > 0, None, True), [X]),
    Case("count_nonzero", lambda x: ops.count_nonzero(x > 0, axis=(0, 2), keepdims=True), [X]),
]
