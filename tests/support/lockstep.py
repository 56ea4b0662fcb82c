"""All ranks of an operation over shared memory in one process, in a random order that the barriers allow."""

import random
from collections.abc import Iterator

import numpy as np

from psframework import backend
from psframework.collective.algorithms import reference
from psframework.collective.descriptor import ANY, Descriptor, Operation
from psframework.collective.exchange import plan
from psframework.collective.ops import ReduceOp
from psframework.collective.staging import TURNS, Exchange, Staging
from psframework.collective.work import Work
from psframework.rpc.deadline import Deadline

REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
PARTED = (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
ROOTED = (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)


def works(operation: Operation, size: int, n: int, dtype: str, op: ReduceOp) -> list[Work]:
    root = size - 1 if operation in ROOTED else ANY
    n = (
        n - n % size
        if operation in (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
        else n
    )
    kind = backend.dtype_from_name(dtype)
    told = Descriptor(1, operation, dtype, (n,), op if operation in REDUCING else None, root)
    made = []
    for rank in range(size):
        values = np.random.default_rng(rank).normal(0, 3, n)
        send = values.astype(np.int64 if kind.kind in "iu" else np.float64).astype(kind)
        give = operation not in (Operation.BROADCAST, Operation.SCATTER) or rank == root
        made.append(Work(told, send if give else None, None, Deadline.NEVER, lambda work, error: None))
    expected = reference(told, {rank: work.send for rank, work in enumerate(made)}, size)
    for rank, work in enumerate(made):
        if operation in (Operation.ALL_REDUCE, Operation.REDUCE) and expected[rank] is not None:
            work.receive = work.send
        elif (wanted := expected[rank]) is not None:
            work.receive = np.zeros_like(wanted)
    return made


def steps(exchange: Exchange) -> Iterator[None]:
    """What a rank does from barrier to barrier, filling ahead as early as it may."""
    exchange.fill(0)
    for turn in range(exchange.rounds):
        yield  # arrived
        if turn + 1 < exchange.rounds:
            exchange.fill(turn + 1)
        yield  # wants to go on
        exchange.drain(turn)


def run(made: list[Work], slot_bytes: int, step: int, far: int = 0) -> int:
    """Runs all ranks in a random order that the barriers allow; the first `far` of them use other slots."""
    size = len(made)
    slots = [[np.full(slot_bytes, 0xEE, np.uint8) for _ in range(2 * TURNS)] for _ in range(size)]
    modes = [rank < far for rank in range(size)]
    plans = [plan(work, Staging(rank, size, slots, step, modes)) for rank, work in enumerate(made)]
    assert len({each.rounds for each in plans}) == 1
    running = [steps(each) for each in plans]
    done = [0] * size  # odd: has arrived at barrier (done + 1) / 2; even: wants to pass barrier done / 2
    chance = random.Random(step)
    while True:
        may = [
            rank for rank in range(size)
            if done[rank] <= 2 * plans[rank].rounds
            and (done[rank] % 2 or all(other + 1 >= done[rank] for other in done))
        ]  # fmt: skip
        if not may:
            assert done == [2 * plans[0].rounds + 1] * size
            return plans[0].rounds
        # One rank is much quicker than the others, now this one, now that one.
        rank = may[0] if chance.random() < 0.7 else chance.choice(may)
        next(running[rank], None)
        done[rank] += 1
