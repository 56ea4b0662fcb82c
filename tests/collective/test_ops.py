"""Which dtypes can be reduced by which operation."""

import numpy as np
import pytest

from psframework.backend import bfloat16
from psframework.collective.ops import ReduceOp, check_op
from psframework.errors import ArgumentError

BITS = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
WHOLE = ["bool", "int8", "uint64"]
REAL = ["float16", "float32", "float64", bfloat16]
COMPLEX = ["complex64", "complex128"]


@pytest.mark.parametrize("op", ReduceOp, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", WHOLE + REAL + COMPLEX, ids=str)
def test_what_is_taken(op, dtype):
    allowed = {
        "whole": set(ReduceOp) - {ReduceOp.AVG},
        "real": set(ReduceOp) - BITS,
        "complex": set(ReduceOp) - BITS - {ReduceOp.MIN, ReduceOp.MAX},
    }["whole" if dtype in WHOLE else "real" if dtype in REAL else "complex"]
    if op in allowed:
        check_op(op, np.dtype(dtype))
    else:
        with pytest.raises(ArgumentError, match=op.name):
            check_op(op, np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]"])
def test_what_is_no_number(dtype):
    with pytest.raises(ArgumentError, match="can't be reduced"):
        check_op(ReduceOp.SUM, np.dtype(dtype))


@pytest.mark.parametrize("op", ["sum", 1, None])
def test_what_is_no_operation(op):
    with pytest.raises(ArgumentError, match=r"psf\.ReduceOp\.SUM"):
        check_op(op, np.dtype("float32"))
