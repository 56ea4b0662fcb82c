"""Where calls wait for the outcome of a barrier; the decisions are BarrierTable's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from psframework.errors import PsfError, ResourceExhausted
from psframework.membership.barrier import BarrierTable, Entry, Outcome
from psframework.membership.store import Change
from psframework.rpc.deadline import Clock


class CoordinatorStopping(Exception):
    """The coordinator ends; whoever waits should try the next one."""


Submit = Callable[[Change], "asyncio.Future[None]"]
_Waiting = tuple[int, int]  # (incarnation, number of the entry)


class BarrierDesk:
    """Futures of the calls in `table`'s barriers."""

    def __init__(self, table: BarrierTable, submit: Submit, clock: Clock) -> None:
        self.table = table
        self._submit = submit
        self._clock = clock
        self._futures: dict[_Waiting, asyncio.Future[tuple[str, ...]]] = {}
        self._calls: dict[_Waiting, int] = {}
        self._stopping = False

    async def enter(self, name: str, count: int, entry: Entry) -> tuple[str, ...]:
        """Waits until `count` members came; returns their names in the order of coming.

        Raises:
            RendezvousTimeout: names who came and who is missing.
            PeerLost: a member died while it waited there, or stands still.
            ArgumentError: a name or count that can't be.
            CoordinatorStopping: enter again at the next coordinator.
        """
        if self._stopping:
            raise CoordinatorStopping
        outcomes, change = self.table.enter(name, count, entry, self._clock())
        key = (entry.member.incarnation, entry.number)
        if key not in self._futures:
            self._futures[key] = asyncio.get_running_loop().create_future()
        future = self._futures[key]
        self._calls[key] = self._calls.get(key, 0) + 1
        try:
            if outcomes:  # also for a repeated entry: its release may not be durable yet
                stored = self._submit(change or Change(()))
                stored.add_done_callback(lambda done: self._stored(outcomes, done))
            return await asyncio.shield(future)
        finally:
            # A retry may have come before the broken call of the same entry was noticed.
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]
                self._futures.pop(key, None)
                self.table.detach(*key)

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Tells the waiting calls how their entries ended."""
        for outcome in outcomes:
            future = self._futures.get((outcome.incarnation, outcome.number))
            if future is None or future.done():
                continue
            if outcome.error is None:
                future.set_result(outcome.names)
            else:
                future.set_exception(outcome.error)

    def stop(self) -> None:
        """Sends everybody who waits away."""
        self._stopping = True
        for future in self._futures.values():
            if not future.done():
                future.set_exception(CoordinatorStopping())

    def _stored(self, outcomes: list[Outcome], done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            self.settle(outcomes)
            return
        told = error if isinstance(error, PsfError) else ResourceExhausted(str(error))
        self.settle(Outcome(outcome.incarnation, outcome.number, error=told) for outcome in outcomes)
