"""A model in the keeper's hands: what its shards are told, in which order, and when one refuses."""

from __future__ import annotations

import asyncio
import json

import pytest

from psframework.errors import DeadlineExceeded, UnknownTable
from psframework.parameter_server.cell import Cell
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.partition import Balanced
from psframework.parameter_server.policy import BSP
from psframework.parameter_server.registry import Applicant, ModelRecord, ModelSpec, ShardRef
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.deadline import Deadline


class Shards:
    """Stands in for ShardCalls: notes what is asked, answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.refusing: set[str] = set()
        self.next_step = {"s0": 3, "s1": 5}

    async def call(self, shard, method, request, response_type, deadline, check=lambda: None):
        check()
        await asyncio.sleep(0)
        self.asked.append((shard.name, method))
        if method == "PublishRoster":
            accepted = shard.name not in self.refusing
            return pb.PublishRosterReply(accepted=accepted, next_step=self.next_step[shard.name])
        if method == "PauseRounds":
            return pb.PauseRoundsReply(next_step=self.next_step[shard.name])
        if method == "FenceWriter":
            return pb.FenceWriterReply(complete=self.next_step[shard.name])
        return response_type()


@pytest.fixture
def shards() -> Shards:
    return Shards()


@pytest.fixture
def cell(shards: Shards) -> Cell:
    spec = ModelSpec((ParameterSpec("w", "float32", (1000,)),), "{}", "{}")
    places = (ShardRef("s0", 1), ShardRef("s1", 2))
    record = ModelRecord("j", "net", spec, json.dumps(Balanced().spec()), False, places, 1)
    return Cell("j/net", record, shards, lambda: 4)  # type: ignore[arg-type]


def soon() -> Deadline:
    return Deadline.after(5)


async def test_tables_are_made_once_and_then_only_told(cell: Cell, shards: Shards):
    assert await cell.publish(soon())
    assert sorted(shards.asked) == [
        (name, method) for name in ("s0", "s1") for method in ("CreateTable", "PublishRoster")
    ]
    shards.asked.clear()
    assert await cell.publish(soon())
    assert shards.asked == []
    cell.set(cell.current().admit(10, Applicant("a", 1, "t"), 0, BSP()))
    assert await cell.publish(soon())
    assert sorted(shards.asked) == [("s0", "PublishRoster"), ("s1", "PublishRoster")]
    assert cell.closed_below == 3


async def test_who_refused_is_asked_again_and_who_accepted_is_not(cell: Cell, shards: Shards):
    shards.refusing = {"s1"}
    assert not await cell.publish(soon())
    shards.asked.clear()
    shards.refusing.clear()
    assert await cell.publish(soon())
    assert {name for name, _ in shards.asked} == {"s1"}


async def test_a_newcomer_starts_where_no_shard_has_closed_and_the_dead_end_where_all_are_complete(
    cell: Cell,
):
    assert await cell.pause(soon()) == 5
    assert await cell.fence(10, soon()) == 3


async def test_a_lost_model_ends_every_call(cell: Cell, shards: Shards):
    cell.lose(UnknownTable("its shard is gone"))
    for call in (cell.publish(soon()), cell.pause(soon()), cell.fence(1, soon())):
        with pytest.raises(UnknownTable, match="shard is gone"):
            await call
    await cell.drop(soon())
    assert shards.asked == [("s0", "DropTable"), ("s1", "DropTable")]


async def test_changes_wait_for_each_other_but_not_for_ever(cell: Cell):
    async with cell.locked(soon()):
        with pytest.raises(DeadlineExceeded, match="'j/net' is busy"):
            async with cell.locked(Deadline.after(0.05)):
                pass
    async with cell.locked(soon()):
        pass


async def test_the_failure_of_one_shard_is_told_as_it_is(cell: Cell, shards: Shards):
    async def broken(shard, *_: object) -> None:
        raise DeadlineExceeded(f"shard {shard.name} did not answer")

    shards.call = broken  # type: ignore[assignment]
    with pytest.raises(DeadlineExceeded, match="did not answer"):
        await cell.pause(soon())
