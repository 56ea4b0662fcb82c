"""Models as the store has them: a record counts once it is durable, a lost model is gone from the store."""

from __future__ import annotations

import asyncio
import json

import pytest

from psframework.errors import PsfError, UnknownTable
from psframework.membership.coordinator import Coordinator
from psframework.membership.store import MemoryStore
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.models import PREFIX, Models
from psframework.parameter_server.partition import Balanced
from psframework.parameter_server.registry import ModelRecord, ModelSpec
from psframework.parameter_server.shard_calls import ShardCalls
from psframework.rpc.security.credentials import Security

SPEC = ModelSpec((ParameterSpec("w", "float32", (10,)),), "{}", "{}")


def record(models: Models, name: str = "net") -> ModelRecord:
    return ModelRecord("j", name, SPEC, json.dumps(Balanced().spec()), False, (), models.next_number())


async def test_records_and_numbers_survive_a_restart():
    store = MemoryStore()
    async with Coordinator(store) as coordinator:
        models = Models(coordinator, ShardCalls(Security.plaintext()))
        cell = models.find_or_begin("j/net")
        assert list(models) == []
        with pytest.raises(UnknownTable, match="'j/net'"):
            models.find("j/net")
        made = record(models)
        await models.change(cell, made)
        assert models.find("j/net").current() == made
        await models.close()
    async with Coordinator(store) as coordinator:
        again = Models(coordinator, ShardCalls(Security.plaintext()))
        again.load()
        assert [cell.current() for cell in again] == [made]
        assert again.next_number() == made.creation + 1
        await again.close()


async def test_a_lost_model_is_forgotten_once_and_its_name_is_free():
    store = MemoryStore()
    async with Coordinator(store) as coordinator:
        models = Models(coordinator, ShardCalls(Security.plaintext()))
        cell = models.find_or_begin("j/net")
        await models.change(cell, record(models))
        models.lose(cell, UnknownTable("gone"))
        models.lose(cell, UnknownTable("gone twice"))
        assert models.find_or_begin("j/net") is not cell
        with pytest.raises(UnknownTable, match=r"gone$"):
            cell.current()
        await coordinator.flushed()
        assert store.items(PREFIX) == []
        await models.close()


async def test_background_work_fails_into_the_log(caplog):
    async with Coordinator(MemoryStore()) as coordinator:
        models = Models(coordinator, ShardCalls(Security.plaintext()))
        done = [asyncio.Event(), asyncio.Event()]

        async def fail(error: Exception, event: asyncio.Event) -> None:
            event.set()
            raise error

        models.spawn(fail(PsfError("expected trouble"), done[0]))
        models.spawn(fail(RuntimeError("a bug"), done[1]))
        for event in done:
            await event.wait()
        await models.close()
    assert "expected trouble" in caplog.text
    assert "a bug" in caplog.text
