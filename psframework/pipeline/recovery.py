"""After a failure: all ranks go back to the newest commit, lost ones are replaced, and work is done again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from psframework.errors import PeerLost
from psframework.pipeline.ranks import ASK_SECONDS, Ranks
from psframework.pipeline.runs import Runs
from psframework.pipeline.training import Training
from psframework.rpc.deadline import Deadline

RETRIES = 2
"""Times that something is repeated though nobody is lost, since two ranks could not reach each other."""

T = TypeVar("T")


class Recovery:
    """Brings one pipe back.

    Args:
        ranks: of the pipe.
        runs: of the pipe.
        training: of the pipe.

    Attributes:
        unsettled: whether something failed, so that ranks may stand at different steps.
    """

    def __init__(self, ranks: Ranks, runs: Runs, training: Training) -> None:
        self._ranks, self._runs, self._training = ranks, runs, training
        self.unsettled = False
        self._bare = False  # whether newcomers do not have yet what they are to keep for others

    async def repeatedly(self, run: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """Does something, and again if ranks are lost and replaced.

        Raises:
            PeerLost: a stage is gone, and nobody took its place in time.
        """
        fruitless = 0
        while True:
            lost, plan = set(self._ranks.lost), self._ranks.plan
            try:
                await self.settle(deadline)
                lost = set(self._ranks.lost)
                return await run()
            except PeerLost as error:
                self.unsettled = True
                await self._ranks.look(Deadline.after(ASK_SECONDS))
                fruitless += self._ranks.lost <= lost and self._ranks.plan is plan
                if deadline.expired or fruitless > RETRIES:
                    raise self._ranks.named(error) from error.__cause__

    async def settle(self, deadline: Deadline) -> None:
        """If something failed: all ranks go back to the newest commit, and do again what came after it.

        Raises:
            PeerLost: a stage is gone, and nobody took its place in time.
            DeadlineExceeded: a stage did not stop in time.
            ContextClosed: the pipe is closed.
        """
        self._runs.check_open()
        if not self.unsettled and not self._ranks.lost:
            return
        self.unsettled = True  # until all of it is done
        ranks, history = self._ranks, self._training.history
        await ranks.look(Deadline.after(min(ASK_SECONDS, max(deadline.remaining(), 0.1))))
        await self._go_back(deadline)
        if ranks.lost:
            self._bare = True
            await ranks.replace_lost(history.commit, self._runs.number, deadline)
            await self._go_back(deadline)
        if self._bare:
            await ranks.call("keep_elsewhere", history.commit, history.commit, deadline=deadline)
            self._bare = False
        for done in history.since_commit:
            await self._training.train(done, deadline)
        self.unsettled = False

    async def _go_back(self, deadline: Deadline) -> None:
        """Those that are there stand at the newest commit afterwards."""
        ranks, number = self._ranks, self._runs.number
        there = [seat for seat in ranks.seats if seat not in ranks.lost]
        await self._runs.call("abort", number, "this run was given up", deadline=deadline, seats=there)
        commit = self._training.history.commit
        await self._runs.call("go_back", ranks.plan, commit, deadline=deadline, seats=there)
