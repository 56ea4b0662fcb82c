"""Every operation's way through the slots, with all ranks in one process."""

import pytest
from lockstep import run, works

from psframework.collective.algorithms import reference
from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp

SIZES = [  # elements, dtype, bytes of a slot
    (0, "float32", 256),
    (1, "float64", 256),
    (7, "bfloat16", 256),
    (1000, "float16", 256),
    (1000, "float32", 4096),
    (40_000, "float32", 16384),
    (33_333, "complex128", 65536),
]


@pytest.mark.parametrize("operation", [each for each in Operation if each not in (10, 11, 12)])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_operation_gives_what_the_reference_gives(operation: Operation, size: int):
    for step, (n, dtype, slot_bytes) in enumerate(SIZES):
        made = works(operation, size, n, dtype, ReduceOp.AVG)
        sends = {rank: None if work.send is None else work.send.copy() for rank, work in enumerate(made)}
        expected = reference(made[0].descriptor, sends, size)
        run(made, slot_bytes, step, step % (size + 1))
        for rank, work in enumerate(made):
            if expected[rank] is None:
                assert work.receive is None
            else:
                assert work.receive.tobytes() == expected[rank].tobytes()
            if work.receive is not work.send and work.send is not None:
                assert work.send.tobytes() == sends[rank].tobytes()  # what is only given stays as it is
