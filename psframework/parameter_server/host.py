"""One table at work on a shard: takes pushes, closes steps and answers pulls, when its gate says so.

The gate belongs to the event loop, the table to whichever thread runs its arithmetic: the compute thread, or,
for a small table, the loop itself, since crossing threads would take longer than the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from psframework.errors import DeadlineExceeded, StaleTerm
from psframework.membership.signal import Signal
from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.gate import Gate, Round, Verdict
from psframework.parameter_server.roster import Roster
from psframework.parameter_server.sources import Source
from psframework.parameter_server.table import Gradient, Pull, Table
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Clock, Deadline, boottime

R = TypeVar("R")
SMALL_BYTES = 256 << 10
GRACE_SECONDS = 0.2


@dataclass(slots=True)
class Push:
    """A push on its way in.

    Args:
        writer: whose.
        sequence: its number.
        step: of the writer.
        receive: gets the gradients, once; waits for the payload.
        kept: their memory stays as it is until the step is closed.
        arriving: gets them partition by partition instead, while they arrive; None if they are here.
        present: positions that have a gradient.
    """

    writer: int
    sequence: int
    step: int
    receive: Callable[[], Awaitable[Gradient]]
    kept: bool = False
    arriving: Callable[[], AsyncIterator[Gradient]] | None = None
    present: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class Waiting:
    """A pull that waits.

    Args:
        writer: whose.
        number: of the pull; a later one of the writer withdraws it.
        step: the writer's next step.
        pull: what it wants.
        answered: it has what it wants (result).
    """

    writer: int
    number: int
    step: int
    pull: Pull
    answered: bool = field(default=False)


class Host:
    """A table with its gate.

    Args:
        name: of the table.
        table: parameters and arithmetic.
        gate: when what may happen.
        creation: number of this making of the table.
        clock: for pauses.
    """

    def __init__(
        self, name: str, table: Table, gate: Gate, creation: int = 0, clock: Clock = boottime
    ) -> None:
        self.name = name
        self.table = table
        self.gate = gate
        self.creation = creation
        self.pulls = 0
        self.busy_seconds = 0.0
        self._clock = clock
        self._changed = Signal()
        self._waiting: list[Waiting] = []
        self._newest: dict[int, int] = {}  # writer -> number of its newest pull
        self._small = table.parameter_bytes <= SMALL_BYTES
        self._closing: asyncio.Task[None] | None = None
        self._dropped: Exception | None = None

    @property
    def memory(self) -> int:
        """Bytes that the table takes now."""
        return self.table.parameter_bytes + self.table.state_bytes + self.table.staged_bytes

    async def initialize(self, source: Source, positions: Sequence[int]) -> None:
        """Sets first values."""
        await self._run(lambda: self.table.initialize(source, positions))

    async def push(self, push: Push, deadline: Deadline) -> Outcome:
        """Takes a push; returns once it is staged or applied, or what became of it before.

        Raises:
            NotRegistered, Evicted: the writer may not push.
            DeadlineExceeded: an earlier step is not closed yet; names who is missing.
        """
        verdict = await self._admitted(push, deadline)
        if verdict is Verdict.APPLY and push.arriving is not None:
            async for _ in self._flow(push, push.arriving(), None):
                pass
            return Outcome.APPLIED
        if verdict is Verdict.APPLY:
            return await self._apply(push, [])
        if verdict is Verdict.STAGE:
            gradient = await push.receive()
            entry = self.gate.trainer(push.writer)
            await self._run(lambda: self.table.stage(entry.slot, gradient, kept=push.kept))
            self.gate.pushed(push.writer, push.step)
            self.pump()
        outcome = self.gate.outcome(push.writer, push.step)  # the step may have been closed meanwhile
        if outcome is Outcome.DROPPED:
            return await self._run(lambda: self.table.finish_push(push.writer, push.sequence, outcome))
        return outcome

    async def push_pull(self, push: Push, waiting: Waiting, deadline: Deadline) -> Outcome:
        """A push, then a pull; where it can be, new values leave while they are still in the cache."""
        self._enlist(waiting)
        try:
            verdict = await self._admitted(push, deadline)
            if verdict is Verdict.APPLY and self.gate.released(push.writer, waiting.step):
                outcome = await self._apply(push, [waiting])
            else:
                outcome = await self.push(push, deadline)
            await self._answered(waiting, deadline)
            return self.gate.outcome(push.writer, push.step) if verdict is not Verdict.APPLY else outcome
        finally:
            self._waiting.remove(waiting)

    async def push_pull_flow(
        self, push: Push, waiting: Waiting, deadline: Deadline
    ) -> AsyncIterator[int] | None:
        """A push that is applied while it arrives, then a pull whose values leave as they are made.

        Returns:
            Positions whose new values are in the pull's sink, as they get there; what they will be and their
            versions are known already. None if the gradients are here, or the policy does not allow it.
        """
        if push.arriving is None:
            return None
        verdict = await self._admitted(push, deadline)
        if verdict is not Verdict.APPLY or not self.gate.released(push.writer, waiting.step):
            return None
        self._announce(waiting)
        await self._run(lambda: self.table.forecast(waiting.pull, push.writer, push.sequence, push.present))
        return self._flow(push, push.arriving(), waiting)

    async def _flow(
        self, push: Push, gradients: AsyncIterator[Gradient], waiting: Waiting | None
    ) -> AsyncIterator[int]:
        """Each partition is applied whole, as soon as its gradient is here, and then copied to the sink."""
        table, sink = self.table, waiting.pull.sink if waiting else None
        changed = set(waiting.pull.changed) if waiting else set()
        missing = set(push.present)
        if sink is not None and (rest := sorted(changed - missing)):
            await self._run(lambda: table.copy_out(rest, sink))
            for position in rest:
                yield position
        async for gradient in gradients:
            self._check_writer(push.writer)
            missing -= gradient.present
            await self._run(lambda: table.apply_part(gradient, sink))  # noqa: B023
            if not missing:
                await self._run(lambda: table.finish_push(push.writer, push.sequence))
                self._pushed(push, waiting)
            for position in sorted(gradient.present & changed):
                yield position

    def _check_writer(self, writer: int) -> None:
        """Raises if the writer was fenced, or the table dropped, while its gradients were on their way."""
        if self._dropped is not None:
            raise self._dropped
        self.gate.trainer(writer)

    def _pushed(self, push: Push, waiting: Waiting | None) -> None:
        self.gate.pushed(push.writer, push.step)
        if waiting is not None:
            if not self._is_newest(waiting):
                raise self._stale(waiting)
            self.pulls += 1
        self.pump()

    async def pull(self, waiting: Waiting, deadline: Deadline, committed: int = 0) -> None:
        """Answers a pull once the policy releases it.

        Args:
            waiting: the pull.
            deadline: when to give up.
            committed: steps of the writer that are complete on every shard; 0: nothing new.

        Raises:
            NotRegistered, Evicted: the writer may not pull.
            StaleTerm: a later pull of the writer came.
            DeadlineExceeded: the release did not come; names who is missing.
        """
        self._enlist(waiting)
        try:
            if committed:
                self.commit(waiting.writer, committed)
            await self._answered(waiting, deadline)
        finally:
            self._waiting.remove(waiting)

    def commit(self, writer: int, committed: int) -> None:
        """The writer's steps below `committed` are complete on every shard."""
        self.gate.commit(writer, committed)
        self.pump()

    async def publish(self, roster: Roster) -> bool:
        """Takes a newer roster; False if a newcomer's first step is closed already."""
        if not self.gate.publish(roster):
            return False
        self._newest = {w: n for w, n in self._newest.items() if w in roster.writers()}
        next_step = self.gate.next_step
        kept = [e.writer for e in roster.entries if e.until_step is None or e.until_step > next_step]
        await self._run(lambda: self.table.keep_writers(kept))
        self.pump()
        return True

    def fence(self, writer: int) -> int:
        """Refuses a writer from now on; returns its first step that is not whole here."""
        complete = self.gate.fence(writer)
        self._changed.notify()
        return complete

    def pause(self, seconds: float) -> int:
        """Closes no step for so long, or until the next roster; returns the first step that is not closed."""
        next_step = self.gate.pause(self._clock() + seconds)
        asyncio.get_running_loop().call_later(seconds + 0.001, self.pump)
        return next_step

    def drop(self, reason: Exception) -> None:
        """The table is gone: everything that waits for it ends with `reason`."""
        self._dropped = reason
        self._changed.notify()

    async def close(self) -> None:
        """Waits for the arithmetic that runs."""
        if self._closing is not None:
            await asyncio.gather(self._closing, return_exceptions=True)

    def pump(self) -> None:
        """Closes every step that can be closed, then wakes whoever waits for a change."""
        if self._closing is None and self._dropped is None:
            if self._small:
                while (ready := self.gate.ready(self._clock())) is not None:
                    pulls = self._due(ready)
                    self._timed(lambda: self.table.apply_round(ready.slots, [w.pull for w in pulls]))  # noqa: B023
                    self._close(ready, pulls)
            elif self.gate.ready(self._clock()) is not None:
                self._closing = asyncio.get_running_loop().create_task(self._close_rounds())
                self._closing.add_done_callback(self._closed)
        self._changed.notify()

    async def _close_rounds(self) -> None:
        while (ready := self.gate.ready(self._clock())) is not None:
            pulls = self._due(ready)
            await self._run(lambda: self.table.apply_round(ready.slots, [w.pull for w in pulls]))  # noqa: B023
            self._close(ready, pulls)
            self._changed.notify()

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.drop(RuntimeError(f"a step of {self.name!r} could not be applied: {error!r}"))
        else:
            self.pump()

    def _close(self, ready: Round, pulls: list[Waiting]) -> None:
        self.gate.closed(ready)
        for waiting in pulls:
            waiting.answered = True

    def _due(self, ready: Round) -> list[Waiting]:
        """The pulls that this step releases."""
        return [
            w for w in self._waiting if w.step <= ready.step + 1 and not w.answered and self._is_newest(w)
        ]

    async def _admitted(self, push: Push, deadline: Deadline) -> Verdict:
        """The gate's verdict, once it is not to wait."""
        while (verdict := self.gate.admit(push.writer, push.step).verdict) is Verdict.WAIT:
            await self._until(
                lambda: self.gate.admit(push.writer, push.step).verdict is not Verdict.WAIT, deadline
            )
        return verdict

    async def _apply(self, push: Push, waiting: list[Waiting]) -> Outcome:
        gradient = await push.receive()
        self._check_writer(push.writer)

        def work() -> None:
            pulls = [w.pull for w in waiting if self._is_newest(w)]
            self.table.apply_push(gradient, pulls)
            self.table.finish_push(push.writer, push.sequence)

        await self._run(work)
        self.gate.pushed(push.writer, push.step)
        for each in waiting:
            each.answered = True
        self.pump()
        return Outcome.APPLIED

    def _enlist(self, waiting: Waiting) -> None:
        self._announce(waiting)
        self._waiting.append(waiting)

    def _announce(self, waiting: Waiting) -> None:
        self.gate.reader(waiting.writer)  # raises for strangers
        if waiting.number < self._newest.get(waiting.writer, 0):
            raise self._stale(waiting)
        self._newest[waiting.writer] = waiting.number

    def _stale(self, waiting: Waiting) -> StaleTerm:
        return StaleTerm(f"pull {waiting.number} of {self.name!r}: a later one of this writer came")

    def _is_newest(self, waiting: Waiting) -> bool:
        return self._newest.get(waiting.writer) == waiting.number

    async def _answered(self, waiting: Waiting, deadline: Deadline) -> None:
        gate = self.gate
        if not waiting.answered:
            await self._until(
                lambda: waiting.answered or gate.released(waiting.writer, waiting.step), deadline
            )
        while not waiting.answered:
            if self._closing is not None:  # a step that runs may answer it on its way
                await self._until(lambda: waiting.answered or self._closing is None, deadline)
                continue
            await self._run(lambda: self._read(waiting))
            waiting.answered = True
        if not self._is_newest(waiting):
            raise self._stale(waiting)
        self.pulls += 1

    def _read(self, waiting: Waiting) -> None:
        # A pull that was given up must not write into memory which its caller uses by now.
        if self._is_newest(waiting):
            self.table.read(waiting.pull)

    async def _until(self, condition: Callable[[], bool], deadline: Deadline) -> None:
        def holds() -> bool:
            if self._dropped is not None:
                raise self._dropped
            return condition()

        # We give up a little earlier than the caller, so that our reason arrives.
        grace = min(GRACE_SECONDS, 0.2 * deadline.remaining())
        try:
            await self._changed.until(holds, Deadline(deadline.at - grace), "")
        except DeadlineExceeded:
            raise DeadlineExceeded(self.gate.waiting()) from None

    async def _run(self, work: Callable[[], R]) -> R:
        if self._small:
            return self._timed(work)
        return await compute(self._timed, work)

    def _timed(self, work: Callable[[], R]) -> R:
        begin = self._clock()
        try:
            return work()
        finally:
            self.busy_seconds += self._clock() - begin
