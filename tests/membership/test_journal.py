"""The journal: in order, durable before visible, many in one transaction, undone together."""

import asyncio
import threading
from collections.abc import Iterable

import pytest

from psframework.errors import PeerLost, ResourceExhausted
from psframework.membership.journal import Journal
from psframework.membership.store import Change, MemoryStore, Write


class GatedStore(MemoryStore):
    """Commits when let, and fails when told; records each transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.entered = threading.Event()
        self.transactions: list[list[str]] = []
        self.failure: Exception | None = None

    def commit(self, writes: Iterable[Write]) -> None:
        keys = [write.key for write in writes]
        self.entered.set()
        assert self.gate.acquire(timeout=10)
        if self.failure is not None:
            raise self.failure
        self.transactions.append(keys)


def change(key: str, log: list[str]) -> Change:
    return Change((Write(key, b""),), lambda: log.append(f"+{key}"), lambda: log.append(f"-{key}"))


async def entered(store: GatedStore) -> None:
    assert await asyncio.to_thread(store.entered.wait, 10)
    store.entered.clear()


async def test_published_in_order_and_only_when_durable() -> None:
    store, log = GatedStore(), []
    async with Journal(store) as journal:
        first = journal.submit(change("a", log))
        await entered(store)
        rest = [journal.submit(change(key, log)) for key in "bcd"]
        assert log == [] and not first.done()
        store.gate.release()
        await first
        assert log == ["+a"]
        store.gate.release()
        await journal.flushed()
        assert log == ["+a", "+b", "+c", "+d"] and all(done.done() for done in rest)
    assert store.transactions == [["a"], ["b", "c", "d"]]


async def test_flushed_without_anything_pending_returns() -> None:
    async with Journal(MemoryStore()) as journal:
        await journal.flushed()


async def test_leaving_writes_what_was_submitted() -> None:
    store, log = MemoryStore(), []
    async with Journal(store) as journal:
        for number in range(100):
            journal.submit(change(f"k{number:02}", log))
    assert len(log) == 100 and len(store.items("k")) == 100
    assert store.commits < 50
    assert not any(thread.name == "psf-store" for thread in threading.enumerate())


@pytest.mark.parametrize("failure", [ResourceExhausted("disk full", retry_after=1.0), OSError("broken")])
async def test_a_failure_undoes_everything_pending_newest_first(failure: Exception) -> None:
    store, log = GatedStore(), []
    store.failure = failure
    async with Journal(store) as journal:
        first = journal.submit(change("a", log))
        await entered(store)
        second, third = (journal.submit(change(key, log)) for key in "bc")  # decided upon `a`
        store.gate.release(3)
        with pytest.raises(ResourceExhausted):
            await first
        assert log == ["-c", "-b", "-a"]
        for done in (second, third):
            with pytest.raises(ResourceExhausted):
                await done
        store.failure = None
        await journal.submit(change("d", log))
        assert log == ["-c", "-b", "-a", "+d"]
    assert store.transactions == [["d"]]


async def test_nobody_need_wait_for_a_change() -> None:
    store, log = GatedStore(), []
    store.failure = OSError("broken")
    store.gate.release(5)
    async with Journal(store) as journal:
        journal.submit(change("a", log))
    assert log == ["-a"]


async def test_a_change_that_cannot_be_published_keeps_back_none_after_it() -> None:
    store, log = GatedStore(), []

    def fail() -> None:
        raise RuntimeError("a broken listener")

    async with Journal(store) as journal:
        broken = journal.submit(Change((Write("a", b""),), fail))
        after = journal.submit(change("b", log))
        store.gate.release(2)
        with pytest.raises(RuntimeError, match="broken listener"):
            await asyncio.wait_for(asyncio.shield(broken), 10)
        await asyncio.wait_for(asyncio.shield(after), 10)
        await journal.flushed()
    assert log == ["+b"]


async def test_a_change_after_the_end_is_refused() -> None:
    log: list[str] = []
    async with Journal(MemoryStore()) as journal:
        pass
    with pytest.raises(PeerLost, match="stopped"):
        await asyncio.wait_for(asyncio.shield(journal.submit(change("a", log))), 10)
    assert log == ["-a"]
