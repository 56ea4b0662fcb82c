"""Process groups of several ranks in one process: their transport meets in a table, their Post is memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

from collective import Mail

from psframework.collective.algorithms import reference
from psframework.collective.descriptor import ANY, check_agreement
from psframework.collective.group import Place, ProcessGroup
from psframework.collective.recorder import Standing
from psframework.collective.work import Work
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost
from psframework.rpc.deadline import Deadline


class Table:
    """Where the works of all ranks meet; whoever comes last does it for all.

    Args:
        size: number of ranks.
        threaded: `done` is called from another thread, as a transport with one of its own does.
        lives_on: after a mismatch.
    """

    def __init__(self, size: int, *, threaded: bool = False, lives_on: bool = True) -> None:
        self.size, self.threaded, self.lives_on = size, threaded, lives_on
        self.names = {rank: f"trainer-{rank}" for rank in range(size)}
        self.works: dict[int, Work] = {}
        self.order: list[str] = []  # what rank 0 started
        self._lock = threading.Lock()

    def start(self, rank: int, work: Work) -> None:
        with self._lock:
            assert rank not in self.works, "the one before has not ended"
            self.works[rank] = work
            if rank == 0:
                self.order.append(str(work.descriptor))
            if len(self.works) < self.size:
                return
            works, self.works = self.works, {}
        if self.threaded:
            threading.Thread(target=self._run, args=(works,)).start()
        else:
            self._run(works)

    def _run(self, works: dict[int, Work]) -> None:
        error: BaseException | None = None
        try:
            check_agreement("g", {rank: work.descriptor for rank, work in works.items()}, self.names)
            said = next(each.descriptor for each in works.values() if not each.descriptor.open)
            if said.dtype and said.operation != said.operation.BARRIER:
                self._move(works, said)
        except CollectiveMismatch as mismatch:
            error = mismatch
        for work in works.values():
            work.done(work, error)

    def _move(self, works: dict[int, Work], said: Any) -> None:
        sends = {rank: None if work.send is None else work.send.copy() for rank, work in works.items()}
        for rank, result in reference(said, sends, self.size).items():
            work = works[rank]
            if work.descriptor.open and work.receive is None:
                assert work.allocate is not None
                work.receive = work.allocate(said)
            wanted = result is not None and (said.root in (ANY, rank) or work.receive is not None)
            assert (work.receive is not None) == wanted, f"{said} on rank {rank}"
            if work.receive is not None and result is not None:
                work.receive[...] = result

    def abort(self, rank: int, error: BaseException) -> None:
        with self._lock:
            work = self.works.pop(rank, None)
        if work is not None:
            work.done(work, error)


class Seat:
    """The transport of one rank."""

    name = "table"

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank
        self.lives_on = table.lives_on
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.error: BaseException | None = None

    def start(self, work: Work) -> None:
        if self.error is not None:
            work.done(work, self.error)
            return
        if work.deadline.at != float("inf"):
            seconds = work.deadline.remaining()
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._late, work)
        self._table.start(self._rank, work)

    def _late(self, work: Work) -> None:
        if self._table.works.get(self._rank) is work:
            del self._table.works[self._rank]
            work.done(work, DeadlineExceeded("somebody did not come in time"))

    def abort(self, error: BaseException) -> None:
        self.error = error
        self._table.abort(self._rank, error)

    async def close(self) -> None:
        self.closed = True


class Connection:
    """The Keeper of all ranks: tells them of each other at once."""

    def __init__(self) -> None:
        self.groups: list[ProcessGroup] = []
        self.silent: set[int] = set()  # ranks that answer nothing
        self.told: list[tuple[int, BaseException]] = []

    def ended(self, group: ProcessGroup, error: BaseException) -> None:
        self.told.append((group.rank, error))
        for other in self.groups:
            other.abort(error)

    async def standings(self, group: ProcessGroup, deadline: Deadline) -> Mapping[int, Standing]:
        others = [each for each in self.groups if each is not group and each.rank not in self.silent]
        return {each.rank: each.recorder.standing() for each in others}

    async def leave(self, group: ProcessGroup) -> None:
        for other in self.groups:
            if other is not group:
                other.abort(PeerLost(f"rank {group.rank} closed", rank=group.rank), group.last_completed)

    async def shrink(self, group: ProcessGroup, deadline: Deadline) -> ProcessGroup:
        raise NotImplementedError

    async def split(
        self, group: ProcessGroup, color: int | None, key: int, deadline: Deadline
    ) -> ProcessGroup | None:
        raise NotImplementedError


class Groups(list[ProcessGroup]):
    """The groups of all ranks, and what they are made of."""

    def __init__(self, size: int, *, timeout: float = 5.0, **options: Any) -> None:
        self.table, self.mail, self.connection = Table(size, **options), Mail(size), Connection()
        self.seats = [Seat(self.table, rank) for rank in range(size)]
        names = tuple(self.mail.names)
        super().__init__(
            ProcessGroup(
                Place("g", 1, rank, names, 0, timeout),
                self.seats[rank],
                self.mail.posts[rank],
                self.connection,
            )
            for rank in range(size)
        )
        self.connection.groups = list(self)


@asynccontextmanager
async def groups(size: int, **options: Any):
    made = Groups(size, **options)
    try:
        yield made
    finally:
        for each in made:
            await each.close()
