"""What a reduction does with the arrays of all ranks, and which dtypes it takes. No I/O."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from psframework import backend
from psframework.errors import ArgumentError


class ReduceOp(IntEnum):
    """How the arrays of all ranks become one.

    AVG divides the sum by the world size, and is refused for integers. The B-operations take integers and
    booleans. float16 and bfloat16 are combined in float32 and rounded once.
    """

    SUM = 1
    AVG = 2
    PRODUCT = 3
    MIN = 4
    MAX = 5
    BAND = 6
    BOR = 7
    BXOR = 8


_BITWISE = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
_ORDERED = {ReduceOp.MIN, ReduceOp.MAX}


def check_op(op: ReduceOp, dtype: np.dtype[Any]) -> None:
    """Raises ArgumentError if arrays of `dtype` can't be combined by `op`."""
    if not isinstance(op, ReduceOp):
        raise ArgumentError(f"op must be a psf.ReduceOp such as psf.ReduceOp.SUM, not {op!r}")
    kind = dtype.kind
    whole = kind in "biu"
    if op in _BITWISE and not whole:
        raise ArgumentError(f"{op.name} combines bits of integers and booleans; {dtype} has none: use SUM")
    if op is ReduceOp.AVG and whole:
        raise ArgumentError(f"AVG of {dtype} would have to be rounded: use SUM, or convert to a float dtype")
    if op in _ORDERED and kind == "c":
        raise ArgumentError(f"{op.name} needs an order, and {dtype} has none")
    if not (whole or kind in "fc" or backend.is_narrow(dtype)):
        raise ArgumentError(f"arrays of {dtype} can't be reduced")
