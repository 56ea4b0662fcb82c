"""The key-value store for code in the coordinator's own process; the same methods as the client's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from psframework.membership.journal import Journal
from psframework.membership.keyvalue import Decision, KeyChanges, KeyEntry, KeyTable
from psframework.membership.signal import Signal


class LocalKeyValue:
    """Reads and writes a KeyTable, and waits until what it says is durable."""

    def __init__(self, table: KeyTable, journal: Journal) -> None:
        self.table = table
        self._journal = journal
        self._changed = Signal()
        table.listen(self._changed.notify)

    async def get(self, key: str) -> KeyEntry | None:
        """Returns the entry of a key, or None. Sees everything decided before the call."""
        await self._journal.flushed()
        return self.table.get(key)

    async def list(self, prefix: str = "") -> tuple[KeyEntry, ...]:
        """Returns the entries whose key begins with `prefix`, in the order of the keys."""
        await self._journal.flushed()
        return self.table.list(prefix)

    async def put(self, key: str, value: bytes) -> int:
        """Writes a key; returns its new revision."""
        entry = (await self.stored(self.table.put(key, value))).entry
        assert entry is not None
        return entry.revision

    async def compare_and_set(
        self, key: str, expected_revision: int, value: bytes
    ) -> tuple[bool, KeyEntry | None]:
        """Writes a key if it has that revision (0: if there is none); returns (written?, the entry now)."""
        decision = await self.stored(self.table.put(key, value, expected=expected_revision))
        return decision.done, decision.entry

    async def delete(self, key: str, expected_revision: int | None = None) -> bool:
        """Deletes a key, if it has that revision; returns whether it did."""
        return (await self.stored(self.table.delete(key, expected_revision))).done

    async def watch(self, prefix: str = "", after_revision: int = 0) -> AsyncIterator[KeyChanges]:
        """Yields the keys with a prefix, then what changes, for ever."""
        await self._journal.flushed()
        first = True
        while True:
            changes = self.table.since(prefix, after_revision)
            if first or changes.complete or changes.written or changes.deleted:
                yield changes
            first, after_revision = False, changes.revision
            if after_revision == self.table.revision:
                await self._changed.wait()

    async def stored(self, decision: Decision) -> Decision:
        """Waits until a decision is durable; one that found things as they are waits for those."""
        if decision.change is None:
            await self._journal.flushed()
        else:
            await asyncio.shield(self._journal.submit(decision.change))
        return decision
