"""All models of a cluster, as the coordinator's store has them. A record counts once it is durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

from psframework.errors import PsfError, UnknownTable
from psframework.membership.coordinator import Coordinator
from psframework.membership.store import Change, Write
from psframework.parameter_server.cell import Cell
from psframework.parameter_server.messages import decode_record, encode_record
from psframework.parameter_server.registry import ModelRecord
from psframework.parameter_server.shard_calls import ShardCalls
from psframework.rpc.deadline import Deadline

log = logging.getLogger(__name__)
R = TypeVar("R")
PREFIX: Final = "model/"
COUNTER: Final = "meta/parameter-server-number"
DROP_SECONDS: Final = 10.0


class Models:
    """Cells by table name, and the work that goes on for them in the background.

    Args:
        coordinator: members and store.
        calls: to shards.
    """

    def __init__(self, coordinator: Coordinator, calls: ShardCalls) -> None:
        self._coordinator = coordinator
        self._calls = calls
        self._cells: dict[str, Cell] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[Cell]:
        """Those that exist, by name."""
        return iter([cell for _, cell in sorted(self._cells.items()) if cell.record is not None])

    def load(self) -> None:
        """Reads the store."""
        for _, value in self._coordinator.store.items(COUNTER):
            self._number = int(value)
        for _, value in self._coordinator.store.items(PREFIX):
            record = decode_record(value)
            self._cells[record.table] = self._cell(record.table, record)

    async def close(self) -> None:
        """Ends the work in the background."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._calls.close()

    def next_number(self) -> int:
        """A number that is unique for ever, once a record with it is durable."""
        self._number += 1
        return self._number

    def find(self, table: str) -> Cell:
        """The model of that name; UnknownTable if there is none."""
        cell = self._cells.get(table)
        if cell is None or cell.record is None:
            raise UnknownTable(f"no model {table!r} is registered")
        return cell

    def begun(self, table: str) -> Cell | None:
        """The model of that name, also one that is being created."""
        return self._cells.get(table)

    def find_or_begin(self, table: str) -> Cell:
        """The model of that name, or a cell for one that is to be created."""
        return self._cells.setdefault(table, self._cell(table, None))

    async def change(self, cell: Cell, record: ModelRecord) -> None:
        """Makes a record durable, and then the one that counts."""
        cell.check()  # else a model that was lost while we asked its shards would come back with a restart
        record = record.pruned(cell.closed_below)
        writes = (
            Write(PREFIX + record.table, encode_record(record)),
            Write(COUNTER, b"%d" % self._number),
        )
        # Shielded: a caller that goes away doesn't take back what is decided.
        await asyncio.shield(self._coordinator.submit(Change(writes, lambda: cell.set(record))))

    def lose(self, cell: Cell, reason: PsfError) -> None:
        """A model is gone: nobody finds it any more, and its shards are told to drop it."""
        if cell.lost is not None:
            return
        cell.lose(reason)
        if self._cells.get(cell.name) is cell:
            del self._cells[cell.name]
        if cell.record is not None:
            log.info("model %s is dropped: %s", cell.name, reason)
            self._coordinator.submit(Change((Write(PREFIX + cell.name, None),)))
            self.spawn(cell.drop(Deadline.after(DROP_SECONDS)))

    async def whole(self, work: Coroutine[Any, Any, R]) -> R:
        """Does work to its end, also if the caller goes away: what is stored is told to the shards."""
        task = asyncio.get_running_loop().create_task(work, name="psf-keeper")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Does work in the background; a failure is logged."""
        task = asyncio.get_running_loop().create_task(_guarded(work), name="psf-keeper")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cell(self, table: str, record: ModelRecord | None) -> Cell:
        return Cell(table, record, self._calls, lambda: self._coordinator.term)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except PsfError as error:
        log.warning("the keeper of models: %s", error)
    except Exception:
        log.exception("the keeper of models failed")
