"""A transport for ranks in one process: the last rank to start an operation computes it for all."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from psframework.collective.algorithms import reference
from psframework.collective.descriptor import check_agreement
from psframework.collective.work import Work
from psframework.errors import CollectiveMismatch


class Together:
    """What the ranks of one group share.

    Args:
        group: its name.
        names: of its members, by their ranks in the whole group.
    """

    def __init__(self, group: str, names: Mapping[int, str]) -> None:
        self.group = group
        self.names, self.numbers = names, tuple(names)
        self.waiting: dict[int, Work] = {}
        self.error: BaseException | None = None
        self.operations: list[str] = []
        self.lock = threading.Lock()
        self.transports = [TogetherTransport(self, rank) for rank in range(len(names))]

    def start(self, rank: int, work: Work) -> None:
        with self.lock:
            assert rank not in self.waiting, "one operation after the other"
            self.waiting[rank] = work
            if self.error is None and len(self.waiting) < len(self.names):
                return
            works, self.waiting = self.waiting, {}
        error = self.error or self._compute(works)
        for each in works.values():
            each.done(each, error)

    def _compute(self, works: dict[int, Work]) -> BaseException | None:
        said = {rank: work.descriptor for rank, work in works.items()}
        try:
            check_agreement(self.group, {self.numbers[rank]: each for rank, each in said.items()}, self.names)
        except CollectiveMismatch as error:
            return error
        told = next((each for each in said.values() if not each.open), said[0])
        self.operations.append(told.operation.name)
        got = reference(told, {rank: work.send for rank, work in works.items()}, len(self.names))
        for rank, work in works.items():
            result = got[rank]
            if result is None:
                assert work.receive is None or work.receive is work.send or rank == told.root, told
                continue
            if work.receive is None:
                assert work.descriptor.open and work.allocate is not None, told
                work.receive = work.allocate(told)
            np.copyto(work.receive, result)
        return None

    def abort(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error
            works, self.waiting = self.waiting, {}
        for work in works.values():
            work.done(work, error)


class TogetherTransport:
    """One rank's end."""

    name = "together"
    lives_on = True

    def __init__(self, together: Together, rank: int) -> None:
        self.together = together
        self.rank = rank
        self.closed = False

    def start(self, work: Work) -> None:
        self.together.start(self.rank, work)

    def abort(self, error: BaseException) -> None:
        self.together.abort(error)

    async def close(self) -> None:
        self.closed = True
