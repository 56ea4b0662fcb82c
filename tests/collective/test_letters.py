"""The letters of one operation: how many there are, what rides with the descriptor, what is refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from collective import Mail, collect, describe, prepare

from psframework.collective.agreement import MESH
from psframework.collective.descriptor import Operation
from psframework.collective.letters import FIRST_STEP, Letters
from psframework.collective.network import Network
from psframework.collective.post import Key
from psframework.collective.tuning import Table
from psframework.errors import WireError
from psframework.rpc.deadline import Deadline


async def sent(size: int, operation: Operation, nbytes: int, table: Table) -> Mail:
    mail = Mail(size)
    sends = [np.zeros(nbytes, np.uint8) for _ in range(size)]
    transports = [Network(post, table) for post in mail.posts]
    await collect(transports, [describe(operation, sends[0])] * size, sends)
    for each in transports:
        await each.close()
    return mail


async def test_a_small_all_reduce_is_one_letter_to_each_other_rank() -> None:
    mail = await sent(4, Operation.ALL_REDUCE, 4096, Table({4: 4096}))
    assert len(mail.sent) == 4 * 3
    assert {nbytes for *_, nbytes in mail.sent} == {4096}


async def test_a_larger_one_is_two() -> None:
    mail = await sent(4, Operation.ALL_REDUCE, 4096, Table({}))
    assert len(mail.sent) == 4 * 3 * 2
    assert sum(nbytes for *_, nbytes in mail.sent) == 4 * 2 * 3 * 1024


async def test_a_barrier_is_one_and_among_many_a_few() -> None:
    assert len((await sent(MESH, Operation.BARRIER, 0, Table())).sent) == MESH * (MESH - 1)
    assert len((await sent(MESH + 1, Operation.BARRIER, 0, Table())).sent) == (MESH + 1) * 5


@pytest.mark.parametrize(
    "wrong",
    [[b"12345678"], [b"", b""], [b"x" * 15], [b"x" * 8, b"x" * 8], [b"x" * 17], []],
    ids=["short", "none", "half an element", "cut", "long", "no part"],
)
async def test_a_chunk_of_another_length_or_cut_is_refused(wrong: list[bytes]) -> None:
    mail = Mail(2)
    send = np.zeros(4, np.float32)
    work = prepare(describe(Operation.ALL_REDUCE, send), 0, 2, send, Deadline.after(5))
    async with asyncio.TaskGroup() as tasks:
        letters = Letters(mail.posts[0], "", work, tasks.create_task)
        await mail.posts[1].send(0, Key("", 1, FIRST_STEP), b"", wrong, Deadline.after(5))
        with pytest.raises(WireError, match=r"rank 1 sent parts of \[.*\] bytes where \[16\] belong"):
            await letters.take(1, FIRST_STEP, send)


def test_each_rank_begins_with_the_next() -> None:
    async def others() -> list[list[int]]:
        mail = Mail(3)
        work = prepare(describe(Operation.BARRIER, None), 0, 3, None, Deadline.NEVER)
        async with asyncio.TaskGroup() as tasks:
            return [Letters(post, "", work, tasks.create_task).others for post in mail.posts]

    assert asyncio.run(others()) == [[1, 2], [2, 0], [0, 1]]
