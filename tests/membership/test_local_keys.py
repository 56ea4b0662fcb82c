"""The store for the coordinator's own process: durable when it says so, watched in order."""

import asyncio
from contextlib import aclosing

from psframework.membership.journal import Journal
from psframework.membership.keyvalue import KEY_PREFIX, KeyTable
from psframework.membership.local_keys import LocalKeyValue
from psframework.membership.store import MemoryStore


async def test_reads_see_what_was_written() -> None:
    store = MemoryStore()
    async with Journal(store) as journal:
        keys = LocalKeyValue(KeyTable(), journal)
        revision = await keys.put("a/1", b"x")
        assert store.items(KEY_PREFIX + "a/1")
        entry = await keys.get("a/1")
        assert entry is not None and (entry.value, entry.revision) == (b"x", revision)
        assert await keys.compare_and_set("a/1", revision + 1, b"y") == (False, entry)
        written, newer = await keys.compare_and_set("a/1", revision, b"y")
        assert written and newer is not None and newer.revision > revision
        await keys.put("b", b"")
        assert [entry.key for entry in await keys.list("a/")] == ["a/1"]
        assert not await keys.delete("a/1", revision) and await keys.delete("a/1")
        assert await keys.get("a/1") is None and await keys.list() == (await keys.get("b"),)


async def test_only_one_of_many_sets_wins() -> None:
    async with Journal(MemoryStore()) as journal:
        keys = LocalKeyValue(KeyTable(), journal)
        results = await asyncio.gather(*(keys.compare_and_set("k", 0, b"%d" % n) for n in range(20)))
        assert sum(written for written, _ in results) == 1
        assert {entry.value for _, entry in results if entry} == {b"0"}


async def test_watching() -> None:
    async with Journal(MemoryStore()) as journal:
        keys = LocalKeyValue(KeyTable(), journal)
        await keys.put("a/1", b"1")
        async with aclosing(keys.watch("a/")) as changes:
            first = await anext(changes)
            assert first.complete and [entry.key for entry in first.written] == ["a/1"]
            await keys.put("b", b"")  # of another prefix: wakes nobody
            await keys.put("a/2", b"2")
            second = await asyncio.wait_for(anext(changes), 5)
            assert not second.complete and [entry.key for entry in second.written] == ["a/2"]
            await keys.delete("a/1")
            third = await asyncio.wait_for(anext(changes), 5)
            assert third.deleted == ("a/1",) and third.revision > second.revision
