"""Ranks of DistributedDataParallel in one process: real groups over a transport that is only memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from psframework.collective.algorithms import reference
from psframework.collective.descriptor import check_agreement
from psframework.collective.group import Place, ProcessGroup
from psframework.collective.recorder import Standing
from psframework.collective.work import Flat, Work
from psframework.errors import CollectiveMismatch, PeerLost
from psframework.rpc.deadline import Deadline


class Table:
    """Where the transports of all ranks meet: an operation happens when the last rank has come to it.

    Attributes:
        done: each operation that happened, as rank 0 described it.
    """

    def __init__(self, size: int) -> None:
        self.members = tuple(f"trainer-{rank}" for rank in range(size))
        self.done: list[str] = []
        self._lock = threading.Lock()
        self._works: dict[int, Work] = {}
        self._error: BaseException | None = None

    def groups(self) -> list[ProcessGroup]:
        """The group of each rank. On a loop."""
        places = [Place("test", 1, rank, self.members, timeout=20) for rank in range(len(self.members))]
        return [ProcessGroup(place, Memory(self, place.rank), None, Nobody()) for place in places]

    def arrive(self, rank: int, work: Work) -> None:
        """A rank begins an operation."""
        with self._lock:
            error = self._error
            if error is None:
                self._works[rank] = work
            if error is None and len(self._works) < len(self.members):
                return
            works, self._works = self._works if error is None else {rank: work}, {}
        if error is None:
            error = self._exchange(works)
        for each in works.values():
            each.done(each, error)

    def lose(self, rank: int) -> None:
        """A rank dies: what the others wait for, and all that follows, fails."""
        error = PeerLost(f"rank {rank} ({self.members[rank]}) is gone", peer=self.members[rank])
        with self._lock:
            self._error = error
            works, self._works = self._works, {}
        for each in works.values():
            each.done(each, error)

    def forget(self, rank: int) -> Work | None:
        """The rank's operation will not happen."""
        with self._lock:
            return self._works.pop(rank, None)

    def _exchange(self, works: Mapping[int, Work]) -> CollectiveMismatch | None:
        descriptors = {rank: work.descriptor for rank, work in sorted(works.items())}
        try:
            check_agreement("test", descriptors, dict(enumerate(self.members)))
        except CollectiveMismatch as error:
            return CollectiveMismatch(str(error))  # without the frames that it went through
        said = next(each for each in descriptors.values() if not each.open)
        self.done.append(str(said))
        sends: dict[int, Flat | None] = {rank: work.send for rank, work in works.items()}
        for rank, result in reference(said, sends, len(works)).items():
            work = works[rank]
            if work.receive is None and work.allocate is not None:
                work.receive = work.allocate(said)
            if work.receive is not None and result is not None:
                work.receive[...] = result
        return None


class Memory:
    """The transport of one rank."""

    name = "memory"
    lives_on = True

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank

    def start(self, work: Work) -> None:
        self._table.arrive(self._rank, work)

    def abort(self, error: BaseException) -> None:
        work = self._table.forget(self._rank)
        if work is not None:
            work.done(work, error)

    async def close(self) -> None:
        """Nothing to give back."""


class Nobody:
    """The keeper of a group without a connection."""

    def ended(self, group: ProcessGroup, error: BaseException) -> None:
        """Nobody to tell."""

    async def standings(self, group: ProcessGroup, deadline: Deadline) -> Mapping[int, Standing]:
        return {}

    async def leave(self, group: ProcessGroup) -> None:
        """Nobody to tell."""

    async def shrink(self, group: ProcessGroup, deadline: Deadline) -> Any:
        raise NotImplementedError

    async def split(self, group: ProcessGroup, color: int | None, key: int, deadline: Deadline) -> Any:
        raise NotImplementedError
