"""Who combines what: rounds, and bits that do not depend on chunks."""

import numpy as np
import pytest
from lockstep import run, works

from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp


def test_one_round_more_than_chunks_where_ranks_share_the_work():
    made = works(Operation.ALL_REDUCE, 3, 40_000, "float32", ReduceOp.SUM)
    assert run(made, 16384, 0) == 10 + 1
    made = works(Operation.ALL_REDUCE, 2, 40_000, "float32", ReduceOp.SUM)
    assert run(made, 16384, 0) == 10
    made = works(Operation.ALL_REDUCE, 3, 4_096, "float32", ReduceOp.SUM)
    assert run(made, 16384, 0) == 1


@pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER])
@pytest.mark.parametrize("size", [2, 3])
def test_bits_do_not_depend_on_the_length_of_a_slot(operation: Operation, size: int):
    found = set()
    for slot_bytes in (1024, 4096, 1 << 20):
        made = works(operation, size, 40_000, "float16", ReduceOp.SUM)
        run(made, slot_bytes, 0)
        found.add(b"".join(b"" if work.receive is None else work.receive.tobytes() for work in made))
    assert len(found) == 1


def test_an_overflow_is_an_infinity_without_a_warning():
    made = works(Operation.ALL_REDUCE, 3, 20_000, "float32", ReduceOp.SUM)
    for work in made:
        work.send[:] = np.float32(3e38)
    run(made, 16384, 0)
    assert np.isposinf(made[0].receive).all()
