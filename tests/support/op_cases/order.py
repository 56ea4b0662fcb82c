"""Sorting and choosing; rounding the inputs to 16 bits keeps their order."""

import numpy as np
from op_case import Case

from psframework import ops

X = (np.random.default_rng(15).permutation(24).reshape(2, 3, 4) - 11.5) / 8


def named(name, words, *args, **options):
    return Case(f"{name}{words}", lambda x: getattr(ops, name)(x, *args, **options), [X])


CASES = [
    *(
        case
        for name in ("sort", "argsort")
        for case in (
            named(name, ""),
            named(name, ": axis", 1),
            named(name, ": flattened", None),
            named(name, ": descending", 0, descending=True),
        )
    ),
    Case("sort: empty", ops.sort, [X[:0]]),
    named("topk", "", 2),
    named("topk", ": smallest", 2, axis=1, largest=False),
    named("topk", ": unsorted", 2, sorted=False),
    named("topk", ": all", 3, axis=1),
    named("topk", ": none", 0),
    named("median", ""),
    named("median", ": odd", 1),
    named("median", ": even, kept", -1, keepdims=True),
    named("median", ": all, kept", keepdims=True),
]
