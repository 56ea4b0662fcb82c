"""The key-value store over the wire, and over a restart of the coordinator."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from psframework.errors import ArgumentError
from psframework.membership.store import MemoryStore, SqliteStore
from psframework.testing.observer import Observer


async def test_methods(served) -> None:
    async with served.join() as member:
        keys = member.kv
        assert await keys.get("k") is None
        revision = await keys.put("k", b"\x00\xff")
        entry = await keys.get("k")
        assert entry is not None and (entry.value, entry.revision) == (b"\x00\xff", revision)
        assert entry.writer == member.member.incarnation
        assert await keys.compare_and_set("k", 0, b"y") == (False, entry)
        written, newer = await keys.compare_and_set("k", revision, b"y")
        assert written and newer is not None and newer.value == b"y"
        assert (await keys.compare_and_set("new", 0, b""))[0]
        assert [entry.key for entry in await keys.list()] == ["k", "new"]
        assert [entry.key for entry in await keys.list("n")] == ["new"]
        assert not await keys.delete("k", revision) and await keys.delete("k") and not await keys.delete("k")


@pytest.mark.parametrize(("key", "value"), [("", b""), ("x" * 513, b""), ("k", bytes(2**20 + 1))])
async def test_refused(served, key: str, value: bytes) -> None:
    async with Observer(served.addresses) as observer:
        with pytest.raises(ArgumentError):
            await observer.kv.put(key, value)
        await observer.kv.put("k", bytes(2**20))
        entry = await observer.kv.get("k")
        assert entry is not None and len(entry.value) == 2**20


async def test_one_of_many_wins(served) -> None:
    async with served.join() as first, served.join() as second:
        sets = [m.kv.compare_and_set("leader", 0, m.member.name.encode()) for m in (first, second) * 8]
        results = await asyncio.gather(*sets)
        assert sum(written for written, _ in results) == 1


async def test_a_watch_goes_on_over_a_restart(start, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with start(SqliteStore(path)) as served:
        port = served.port
        observer = await Observer(served.addresses).__aenter__()
        await observer.kv.put("a/1", b"1")
        changes = observer.kv.watch("a/")
        first = await anext(changes)
        assert first.complete and [entry.key for entry in first.written] == ["a/1"]
        await observer.kv.put("a/2", b"2")
        assert [entry.key for entry in (await anext(changes)).written] == ["a/2"]
    following = asyncio.ensure_future(anext(changes))
    async with start(SqliteStore(path), port=port):
        await observer.kv.delete("a/1")
        change = await asyncio.wait_for(following, 10)
        assert change.deleted == ("a/1",) and change.written == ()
        await changes.aclose()
        await observer.__aexit__()


async def test_what_vanished_meanwhile_is_told(start) -> None:
    async with start() as served:
        port, observer = served.port, await Observer(served.addresses).__aenter__()
        for key in ("a", "b", "c"):
            await observer.kv.put(key, b"")
        changes = observer.kv.watch()
        assert len((await anext(changes)).written) == 3
    store = MemoryStore()  # another history: "a" and "c" never were
    store.open()
    async with aclosing(changes), start(store, port=port):
        await observer.kv.put("b", b"again")
        gone: set[str] = set()
        async with asyncio.timeout(10):
            while gone != {"a", "c"}:
                gone |= set((await anext(changes)).deleted) & {"a", "c"}
    await observer.__aexit__()
