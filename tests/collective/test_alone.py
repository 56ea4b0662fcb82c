"""World size 1 (gloo#154): every operation is the identity."""

import numpy as np
import pytest
from collective import REDUCING, SHARING, collect, describe

from psframework.collective.alone import Alone
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.errors import CollectiveMismatch

OF_ARRAYS = [each for each in Operation if Operation.ALL_REDUCE <= each <= Operation.ALL_TO_ALL]


@pytest.mark.parametrize("operation", OF_ARRAYS, ids=lambda each: each.name)
@pytest.mark.parametrize("n", [0, 1, 5])
async def test_identity(operation: Operation, n: int) -> None:
    array = np.arange(1.0, n + 1)
    got = await collect([Alone("g", "me")], [describe(operation, array)], [array])
    expected = None if operation is Operation.BROADCAST else np.arange(1.0, n + 1)
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(array, np.arange(1.0, n + 1))
    assert {*REDUCING, *SHARING} <= {*OF_ARRAYS}


@pytest.mark.parametrize(
    "op", [op for op in ReduceOp if op not in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)]
)
async def test_every_reduction(op: ReduceOp) -> None:
    array = np.array([1.5, -2.0, np.nan])
    got = await collect([Alone("g", "me")], [describe(Operation.ALL_REDUCE, array, op=op)], [array])
    np.testing.assert_array_equal(got[0], np.array([1.5, -2.0, np.nan]))


async def test_barrier_and_refusal() -> None:
    alone = Alone("g", "me")
    assert await collect([alone], [Descriptor(1, Operation.BARRIER)], [None]) == [None]
    (refused,) = await collect([alone], [Descriptor(2, Operation.REFUSE, note="no loss")], [None])
    assert isinstance(refused, CollectiveMismatch) and "rank 0 (me): no loss" in str(refused)
    assert alone.lives_on
