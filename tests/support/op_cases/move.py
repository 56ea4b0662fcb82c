"""Another shape, and moving elements about."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(22)
X, ROW, NUMBER = rng.standard_normal((2, 3, 4)), rng.standard_normal(4), np.array(0.7)
SQUARE, EMPTY, ONES = rng.standard_normal((3, 3)), np.zeros((0, 3, 4)), rng.standard_normal((1, 3, 1))


def one(name, *args, **kwargs):
    return lambda t: getattr(ops, name)(t, *args, **kwargs)


CASES = [
    Case("reshape", one("reshape", (4, -1)), [X]),
    Case("reshape: empty", one("reshape", (3, 0)), [EMPTY]),
    Case("reshape: no axes", one("reshape", (1, 1)), [NUMBER]),
    Case("transpose", ops.transpose, [X]),
    Case("transpose: axes", one("transpose", (1, -1, 0)), [X]),
    Case("swapaxes", one("swapaxes", -1, 0), [X]),
    Case("moveaxis", one("moveaxis", (0, -1), (1, 0)), [X]),
    Case("flatten", one("flatten", 1), [X]),
    Case("flatten: first axes", one("flatten", -3, 1), [X]),
    Case("ravel", ops.ravel, [X]),
    Case("squeeze", ops.squeeze, [ONES]),
    Case("squeeze: axis", one("squeeze", -1), [ONES]),
    Case("unsqueeze", one("unsqueeze", 1), [X]),
    Case("expand_dims", one("expand_dims", (0, -2)), [X]),
    Case("expand", one("expand", (2, 5, -1, 4)), [ONES]),
    Case("broadcast_to", one("broadcast_to", (2, 3, 4)), [ONES]),
    Case("broadcast_to: no axes", one("broadcast_to", (2, 2)), [NUMBER]),
    Case("atleast_1d", ops.atleast_1d, [NUMBER]),
    Case("atleast_2d", ops.atleast_2d, [ROW]),
    Case("atleast_3d", ops.atleast_3d, [SQUARE]),
    Case("atleast_3d: vector", ops.atleast_3d, [ROW]),
    Case("detach", ops.detach, [X]),
    Case("roll", one("roll", 2, 1), [X]),
    Case("roll: flat", one("roll", -5), [X]),
    Case("roll: several axes", one("roll", (1, -2), (0, 2)), [X]),
    Case("roll: empty", one("roll", 2, 1), [EMPTY]),
    Case("flip", ops.flip, [X]),
    Case("flip: axes", one("flip", (0, -1)), [X]),
    Case("fliplr", ops.fliplr, [X]),
    Case("flipud", ops.flipud, [X]),
    Case("rot90", one("rot90", 1, (0, 2)), [X]),
    Case("rot90: back", one("rot90", -1), [X]),
    Case("rot90: half a turn", one("rot90", 2), [X]),
    Case("repeat", one("repeat", 3, 1), [X]),
    Case("repeat: flat", one("repeat", 2), [X]),
    Case("repeat: counts", one("repeat", [2, 0, 1], axis=-2), [X]),
    Case("repeat: never", one("repeat", 0, 1), [X]),
    Case("tile", one("tile", (2, 1, 3)), [X]),
    Case("tile: fewer numbers", one("tile", 2), [X]),
    Case("tile: more numbers", one("tile", (2, 3)), [ROW]),
    Case("tril", ops.tril, [SQUARE]),
    Case("tril: batch", one("tril", -1), [X]),
    Case("triu", one("triu", 1), [X]),
    Case("diagonal", ops.diagonal, [SQUARE]),
    Case("diagonal: axes", one("diagonal", -1, 0, 2), [X]),
    Case("diagonal: other axes", one("diagonal", 1, -1, 1), [X]),
    Case("diagonal: beyond", one("diagonal", 5), [SQUARE]),
    Case("diag", ops.diag, [SQUARE]),
    Case("diag: below", one("diag", -1), [SQUARE]),
    Case("diag: vector", one("diag", 1), [ROW]),
    Case("trace", ops.trace, [SQUARE]),
    Case("trace: axes", one("trace", 1, 1, 2), [X]),
    Case("pad", one("pad", 1), [SQUARE]),
    Case("pad: number", one("pad", [(0, 1), (2, 0)], constant_values=1.5), [SQUARE]),
    Case("pad: empty", one("pad", [(1, 1), (0, 0), (0, 0)]), [EMPTY]),
    *(
        Case(f"pad: {mode}", one("pad", [(1, 2), (0, 1), (2, 2)], mode), [X])
        for mode in ("edge", "symmetric", "wrap", "replicate", "circular")
    ),
    Case("pad: reflect", one("pad", [(1, 0), (2, 2)], "reflect"), [SQUARE]),
    Case("pad: more than there is", one("pad", 7, "reflect"), [ROW]),
    Case("pad: wrap twice", one("pad", 9, "wrap"), [ROW]),
]
