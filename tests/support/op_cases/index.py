"""Indexing, gathering and scattering."""

from dataclasses import replace

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(23)
X, ROW = rng.standard_normal((3, 4, 2)), rng.standard_normal(5)
TABLE, WIDE = rng.standard_normal((3, 4)), rng.standard_normal((5, 6))
# Where indices repeat, each 16-bit gradient is a sum.
AGAIN = np.array([0, 2, 0, -1, 0])
PICKS = np.array([[0, 3, 3], [1, 1, 0]])
ALONG = np.array([[3, 0], [1, 1], [0, 2]])
MASK = np.array([[True, False, True, True], [False] * 4, [True, False, False, True]])

KEYS = {
    "integer": 1,
    "slices": (slice(1, None), slice(None, None, -2)),
    "ellipsis": (..., 1),
    "new axes": (None, slice(None), None, 2),
    "empty": slice(2, 2),
    "list": [0, 0, 2],
    "several lists": ([0, 0, 1], [1, 1, 3]),
    "behind an ellipsis": (..., [1, 1, 0]),
    "integer and list": (0, slice(None), [1, 1]),
    "no places": [],
    "nothing": (),
}


def by(key):
    return lambda x: x[key]


def put(x, values, places):
    return ops.put_along_axis(x, places, values, 1)


INDEXING = [
    *(Case(f"index: {name}", by(key), [X]) for name, key in KEYS.items()),
    Case("index: arrays", lambda x, i, j: x[i, :, j], [X], [AGAIN, np.array([1, 0, 1, 1, 0])]),
    Case("index: arrays broadcast", lambda x, i, j: x[i, j], [X], [np.array([[0], [2]]), AGAIN]),
    Case("index: behind a slice", lambda x, i: x[:, i], [X], [PICKS]),
    Case("index: array behind an ellipsis", lambda x, i: x[..., i], [X], [np.array([1, 1, 0])]),
    Case("index: mask", lambda x, m: x[m], [X], [MASK]),
    Case("index: mask of rows and list", lambda x, m, i: x[m, i], [X], [MASK[2, 1:], np.array([3])]),
    Case("index: mask behind a slice", lambda x, m: x[:, m], [X], [MASK[0]]),
]

CASES = [
    *(replace(case, covers=("take",)) for case in INDEXING),  # the operator, which has no public name
    Case("take", lambda x, i: ops.take(x, i, 1), [X], [PICKS]),
    Case("take: flat", ops.take, [X], [AGAIN]),
    Case("take: one", lambda x: ops.take(x, -1, 0), [X]),
    Case("index_select", lambda x, i: ops.index_select(x, 0, i), [X], [AGAIN]),
    Case("take_along_axis", lambda x, i: ops.take_along_axis(x, i, 1), [TABLE], [ALONG]),
    Case("take_along_axis: broadcast", lambda x, i: ops.take_along_axis(x, i, 1), [TABLE], [ALONG[:1]]),
    Case("take_along_axis: flat", lambda x, i: ops.take_along_axis(x, i, None), [TABLE], [AGAIN]),
    Case("gather", lambda x, i: ops.gather(x, 1, i), [TABLE], [ALONG[:2]]),
    Case("gather: first axis", lambda x, i: ops.gather(x, 0, i), [TABLE], [np.array([[2, 0, 0], [1, 0, 2]])]),
    Case("scatter", lambda x, s, i: ops.scatter(x, 1, i, s), [TABLE, WIDE], [np.array([[3, 0], [1, 2]])]),
    Case("scatter: again", lambda x, s, i: ops.scatter(x, 1, i, s), [TABLE, WIDE], [ALONG]),
    Case("scatter: number", lambda x, i: ops.scatter(x, 1, i, 0.5), [TABLE], [ALONG]),
    Case("scatter_add", lambda x, s, i: ops.scatter_add(x, 1, i, s), [TABLE, WIDE], [ALONG]),
    Case("index_add", lambda x, s, i: ops.index_add(x, 0, i, s, 2), [TABLE, WIDE[:, :4].copy()], [AGAIN]),
    Case("put_along_axis", put, [TABLE, WIDE[:3, :2].copy()], [ALONG]),
    Case("put_along_axis: broadcast", put, [TABLE, np.array(0.5)], [ALONG]),
    Case("masked_fill", lambda x, m: ops.masked_fill(x, m, 0.5), [TABLE], [MASK]),
    Case("masked_fill: row", lambda x, m: ops.masked_fill(x, m, -np.inf).exp(), [TABLE], [MASK[0]]),
    Case("masked_fill: tensor", lambda x, v, m: ops.masked_fill(x, m, v), [TABLE, np.array(0.5)], [MASK]),
    Case("nonzero", lambda x: ops.nonzero(x)[1], [TABLE]),
    Case("masked_select", ops.masked_select, [TABLE], [MASK]),
    Case("masked_select: broadcast", ops.masked_select, [TABLE[0]], [MASK]),
]
