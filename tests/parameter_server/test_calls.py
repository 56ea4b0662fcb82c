"""Calls side by side each run to their end, and the first failure is the one that is raised."""

import asyncio

import pytest

from psframework.errors import DeadlineExceeded, UnknownTable
from psframework.parameter_server.calls import call_keeper, each
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.testing.servers import servers


async def test_one_failure_does_not_stop_the_others():
    ended = []

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        if number == 1:
            raise UnknownTable("number 1")
        await asyncio.sleep(0)
        ended.append(number)
        return number

    with pytest.raises(UnknownTable, match="number 1"):
        await each(work(n) for n in range(4))
    assert ended == [0, 2, 3]
    assert await each(work(n) for n in (5, 7)) == [5, 7]
    assert await each([work(9)]) == [9]
    with pytest.raises(UnknownTable, match="number 1"):
        await each([work(1)])


async def test_the_keeper_answers_with_its_own_errors_and_silence_ends():
    async with servers(1) as made, made.trainer() as runtime:
        request = pb.CommitStepRequest(table="default/none")
        with pytest.raises(UnknownTable, match="'default/none'"):
            await call_keeper(runtime, "CommitStep", request, pb.CommitStepReply, Deadline.after(10))
        with pytest.raises(DeadlineExceeded):
            await call_keeper(runtime, "CommitStep", request, pb.CommitStepReply, Deadline.after(0))
