"""Rows of tables, and bags of them."""

from functools import partial

import numpy as np
from op_case import Case

from psframework.autograd.ops.embedding import embedding
from psframework.autograd.ops.embedding_bag import embedding_bag

rng = np.random.default_rng(0)
TABLE, IDS = rng.standard_normal((5, 3)), np.array([[0, 2, 2], [4, 2, 0]])
FLAT, OFFSETS = np.array([1, 1, 4, 0]), np.array([0, 0, 3])
FACTORS = rng.uniform(0.5, 2, (2, 3))


def looked_up(**options):
    return lambda table, ids: embedding(ids, table, **options)


def bag(**options):
    return lambda table, ids, *offsets: embedding_bag(ids, table, *offsets, **options)


def weighted(table, factors, ids, *offsets, **options):
    return embedding_bag(ids, table, *offsets, mode="sum", per_sample_weights=factors, **options)


CASES = [
    Case("embedding", looked_up(), [TABLE], [IDS]),
    Case("embedding: sparse", looked_up(sparse=True), [TABLE], [IDS]),
    Case("embedding: one id", looked_up(), [TABLE], [np.array(3)]),
    Case("embedding: no id", looked_up(sparse=True), [TABLE], [IDS[:0]]),
    # Of an id that does not come: padding is kept from learning, which is no derivative.
    Case("embedding: padding", looked_up(padding_idx=1), [TABLE], [IDS]),
    *(
        Case(f"embedding_bag: {mode}, {kind}", bag(mode=mode), [TABLE], constants)
        for mode in ("sum", "mean", "max")
        for kind, constants in {"of one length": [IDS], "of any length": [FLAT, OFFSETS]}.items()
    ),
    Case("embedding_bag: sparse", bag(sparse=True), [TABLE], [FLAT, OFFSETS]),
    Case("embedding_bag: padding", bag(padding_idx=2, mode="max"), [TABLE], [IDS]),
    Case("embedding_bag: weighted", weighted, [TABLE, FACTORS], [IDS]),
    Case(
        "embedding_bag: weighted, padding",
        partial(weighted, padding_idx=2, sparse=True),
        [TABLE, FACTORS],
        [IDS],
    ),
    Case(
        "embedding_bag: weighted, of any length", weighted, [TABLE, FACTORS[0, :1].repeat(4)], [FLAT, OFFSETS]
    ),
]
