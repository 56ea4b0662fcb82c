"""The trainer's side: a model whose parameters live on the shards of a parameter server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from google.protobuf.message import Message

from psframework.errors import ArgumentError, ContextClosed, PeerLost, PsfError
from psframework.parameter_server.arena import ModelMemory
from psframework.parameter_server.calls import call_keeper, each
from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.link import Gradients, Runtime, ShardLink, Target
from psframework.parameter_server.messages import (
    outcome_from_message,
    partition_from_message,
    shard_from_message,
)
from psframework.parameter_server.partition import Partition, covered
from psframework.parameter_server.policy import BSP, policy_from_spec
from psframework.parameter_server.stats import Statistics
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Deadline
from psframework.wire.compress import Compression, parse

log = logging.getLogger(__name__)
R = TypeVar("R")
M = TypeVar("M", bound=Message)
CALL_SECONDS: Final = 60.0
LEAVE_SECONDS: Final = 2.0
REMIND_SECONDS: Final = 2.0


@dataclass(slots=True)
class _Pending:
    """A push that is not acknowledged by all shards yet."""

    gradients: Gradients
    acknowledged: set[int] = field(default_factory=set)
    outcomes: set[Outcome] = field(default_factory=set)
    next_step: int = 0
    committed: asyncio.Event = field(default_factory=asyncio.Event)


class ParameterServer:
    """A model on the parameter server; made by `cluster.parameter_server(...)`.

    The parameters are views into an arena that pulls replace, so they belong to the server: what else writes
    to them is lost. Calls of one handle run one after the other. After a call that failed or was cancelled,
    the next one first finishes its push, with the same bytes: no gradient is lost or counted twice.

    Attributes:
        name: of the model.
        step: this trainer's next step, from 0.
        slot: this trainer's place in sums.
    """

    def __init__(
        self, runtime: Runtime, memory: ModelMemory, reply: pb.RegisterReply, table: str, *, reader: bool
    ) -> None:
        self.name = table.partition("/")[2]
        self._reader = reader
        self.step = reply.step
        self.slot = reply.slot
        self._runtime = runtime
        self._memory = memory
        self._table = table
        self._writer = reply.writer
        self._policy = policy_from_spec(json.loads(reply.policy))
        self._partitions = tuple(partition_from_message(p) for p in reply.partitions)
        self._links = [
            ShardLink(runtime, table, reply.writer, shard_from_message(shard), _held(self._partitions, index))
            for index, shard in enumerate(reply.shards)
        ]
        spares = isinstance(self._policy, BSP) and self._policy.spares > 0
        # Under BSP a step counts when all shards have it, so a pull must follow the last acknowledgement.
        self._one_trip = not isinstance(self._policy, BSP) or (len(self._links) == 1 and not spares)
        self._tells_keeper = spares and not reader
        self._lock = asyncio.Lock()
        self._leaving = asyncio.Lock()
        self._pending: _Pending | None = None
        self._sequence = 0
        self._pull_number = 0
        self._commits: asyncio.Task[None] | None = None
        self._statistics = Statistics()
        self._closed = False
        self._left = False  # no more calls
        self._told = False  # the keeper knows

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"step {self.step}"
        return f"<ParameterServer {self._table!r} on {len(self._links)} shards, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def pull(self, *, timeout: float | None = None) -> None:
        """Brings the parameters up to date; under BSP and SSP waits for the release of the step.

        Args:
            timeout: seconds; None: 60; 0: no limit.

        Raises:
            DeadlineExceeded: the release did not come; names who is missing.
            PeerLost: a shard is gone; names it.
            Evicted: this trainer was fenced.
        """
        async with self._turn():
            deadline = _deadline(timeout)
            await self._finish(deadline)
            await self._pull(deadline)

    async def push(self, *, timeout: float | None = None, compression: str | None = None) -> None:
        """Takes the gradients (`grad` is None afterwards); returns when they are safe on every shard.

        A parameter without a gradient counts as zero where its partition has others, else it stays as it is.

        Args:
            timeout: seconds; None: 60; 0: no limit.
            compression: "fp16" or "bf16": how float32 and float64 travel where memory is not shared.

        Raises:
            As `pull`; and ArgumentError for a reader.
        """
        async with self._turn():
            deadline = _deadline(timeout)
            await self._finish(deadline)
            self._freeze(kept=False, compression=compression)
            await self._finish(deadline)

    async def push_pull(self, *, timeout: float | None = None, compression: str | None = None) -> None:
        """`push`, then `pull`, in one round trip where the policy allows it."""
        async with self._turn():
            deadline = _deadline(timeout)
            await self._finish(deadline)
            self._freeze(kept=True, compression=compression)
            await self._finish(deadline)

    async def leave(self) -> None:
        """Ends the participation: nobody waits for this trainer any more. Idempotent.

        A push that still runs is brought to its end; a pull that still waits ends with an error.
        """
        async with self._leaving:
            if self._told:
                return
            self._left = True
            try:
                await self._finish_last_push()
            except (PsfError, TimeoutError) as error:
                log.warning("%s: the last push is lost: %s", self._table, error)
            request = pb.LeaveModelRequest(table=self._table, writer=self._writer, until_step=self.step)
            await call_keeper(
                self._runtime, "LeaveModel", request, pb.LeaveModelReply, Deadline.after(LEAVE_SECONDS)
            )
            self._told = True

    async def _finish_last_push(self) -> None:
        pending = self._pending
        if pending is None or pending.committed.is_set():
            return  # a call that still runs waits for others, maybe for long
        async with asyncio.timeout(LEAVE_SECONDS):
            if self._lock.locked():
                await pending.committed.wait()
                return
            async with self._lock:
                await self._finish_staging(Deadline.after(LEAVE_SECONDS))

    async def close(self) -> None:
        """Leaves; the model keeps its values. Never raises for what is gone. Idempotent."""
        if self._closed:
            return
        try:
            await self.leave()
        except PsfError as error:
            log.info("%s: left without telling: %s", self._table, error)
        finally:
            self._closed = True
            if self._commits is not None:
                self._commits.cancel()
                await asyncio.gather(self._commits, return_exceptions=True)
            self.let_go()

    def let_go(self) -> None:
        """Gives the model memory of its own, and has the shards forget ours."""
        for link in self._links:
            link.unshare()
        self._memory.release()

    def stats(self) -> Statistics:
        """What this handle has done so far; a copy."""
        return self._statistics.with_traffic(self._links)

    # Opening

    async def open(self, initialize: bool, deadline: Deadline) -> None:
        """Moves the model into shared memory where it can be, and sends or gets its first values."""
        for link in self._links:
            await link.share(self._memory.segment, deadline)
        await compute(self._memory.bind)
        if not initialize:
            await self._pull(deadline)
            return
        await each(link.initialize(self._memory.values, deadline) for link in self._links)
        request = pb.FinishInitializationRequest(table=self._table, writer=self._writer)
        reply = pb.FinishInitializationReply
        await call_keeper(self._runtime, "FinishInitialization", request, reply, deadline)

    # One call at a time

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self._check_open()
        async with self._lock:
            self._check_open()
            yield

    def _check_open(self) -> None:
        if self._closed or self._left:
            raise ContextClosed(f"{self!r} was left or closed: open it again")
        try:
            self._runtime.membership.check()
        except PeerLost:
            pass  # no coordinator for now: whether we still count is the shards' word, not our clock's

    def _freeze(self, *, kept: bool, compression: str | None) -> None:
        """Takes the gradients, as they will be sent however often it takes."""
        if self._reader:
            raise ArgumentError(f"{self!r} was opened with reader=True: it only pulls")
        method = Compression.NONE if compression is None else parse(compression)
        arena, present = self._memory.take()
        self._sequence += 1
        partitions = self._covering(present)
        if partitions:
            for index, field_ in enumerate(self._memory.layout.fields):
                if index not in present and any(
                    p.index in partitions for p in covered(field_, self._partitions)
                ):
                    arena.views[index][...] = 0
        gradients = Gradients(self._sequence, self.step, arena, partitions, kept, method)
        self._pending = _Pending(gradients)

    def _covering(self, present: frozenset[int]) -> frozenset[int]:
        """The partitions that hold a part of these parameters."""
        fields = self._memory.layout.fields
        if len(present) == len(fields):
            return frozenset(p.index for p in self._partitions)
        return frozenset(p.index for i in present for p in covered(fields[i], self._partitions))

    async def _finish(self, deadline: Deadline) -> None:
        """Brings the push under way to its end: staged everywhere; and its pull, if it has one."""
        pending = self._pending
        if pending is None:
            return
        if pending.gradients.kept and self._one_trip:
            await self._push_pull(pending, deadline)
        else:
            await self._finish_staging(deadline)
            if pending.gradients.kept:
                await self._pull(deadline)
        self._pending = None

    async def _finish_staging(self, deadline: Deadline) -> None:
        """Gets the push under way acknowledged by every shard, then tells them (at once, without waiting)."""
        pending = self._pending
        if pending is None or pending.committed.is_set():
            return

        async def push(index: int, link: ShardLink) -> None:
            reply = await link.push(pending.gradients, pending.gradients.step, deadline)
            self._heard(pending, index, reply)

        late = [(i, link) for i, link in enumerate(self._links) if i not in pending.acknowledged]
        await each(push(index, link) for index, link in late)
        await self._complete(pending, deadline)
        if not pending.gradients.kept:
            self._pending = None
            self._commit_soon()

    async def _push_pull(self, pending: _Pending, deadline: Deadline) -> None:
        target = self._target()
        step = pending.gradients.step

        async def push_pull(index: int, link: ShardLink) -> None:
            reply = await link.push_pull(pending.gradients, step, target, deadline)
            self._heard(pending, index, reply.push)

        await each(push_pull(index, link) for index, link in enumerate(self._links))
        await self._complete(pending, deadline)
        self._memory.swap()
        self._statistics.pulls += 1

    async def _pull(self, deadline: Deadline) -> None:
        target = self._target()
        pulls = each(link.pull(target, self.step, self.step, deadline) for link in self._links)
        replies = await (self._reminding(pulls) if self._tells_keeper else pulls)
        self._memory.swap()
        self._statistics.pulls += 1
        self.step = max([self.step, *self._jumps(replies)])

    async def _reminding(self, pulls: Coroutine[Any, Any, R]) -> R:
        """A coordinator that restarted does not know which steps are complete: tells it while we wait."""

        async def remind() -> None:
            while True:
                await asyncio.sleep(REMIND_SECONDS)
                await self._tell_keeper(self.step - 1, Deadline.after(CALL_SECONDS))

        reminder = asyncio.ensure_future(remind())
        try:
            return await pulls
        finally:
            reminder.cancel()
            await asyncio.gather(reminder, return_exceptions=True)

    async def _tell_keeper(self, step: int, deadline: Deadline) -> None:
        request = pb.CommitStepRequest(table=self._table, writer=self._writer, step=step)
        await call_keeper(self._runtime, "CommitStep", request, pb.CommitStepReply, deadline)

    def _jumps(self, replies: Iterable[pb.PullReply]) -> Iterable[int]:
        """With spares the others may have gone on without us."""
        return (reply.next_step for reply in replies) if self._tells_keeper else ()

    def _target(self) -> Target:
        self._pull_number += 1
        return Target(self._memory.spare, self._memory.side, self._pull_number)

    def _heard(self, pending: _Pending, index: int, reply: pb.PushReply) -> None:
        pending.acknowledged.add(index)
        pending.next_step = max(pending.next_step, reply.next_step)
        outcome = outcome_from_message(reply.outcome)
        if outcome is not None:
            pending.outcomes.add(outcome)

    async def _complete(self, pending: _Pending, deadline: Deadline) -> None:
        """All shards have the push: the step is done."""
        if pending.committed.is_set():
            return
        step, dropped = pending.gradients.step, Outcome.DROPPED in pending.outcomes
        if self._tells_keeper and not dropped:
            await self._tell_keeper(step, deadline)
        pending.committed.set()
        self.step = max(step + 1, pending.next_step if dropped else 0)
        outcome = Outcome.DROPPED if dropped else next(iter(pending.outcomes), Outcome.STAGED)
        self._statistics.pushes += 1
        self._statistics.outcomes[outcome.value] += 1

    def _commit_soon(self) -> None:
        """Others wait for our word that the step is complete everywhere; the next call repeats it anyway."""
        if self._one_trip or self._tells_keeper:
            return
        if self._commits is not None:
            self._commits.cancel()
        self._commits = asyncio.get_running_loop().create_task(self._commit(self.step), name="psf-commit")

    async def _commit(self, committed: int) -> None:
        deadline = Deadline.after(CALL_SECONDS)
        calls = [link.commit(committed, deadline) for link in self._links]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, Exception):
                log.info("%s: step %d is not confirmed yet: %s", self._table, committed - 1, result)


def _held(partitions: Sequence[Partition], shard: int) -> list[Partition]:
    return [partition for partition in partitions if partition.shard == shard]


def _deadline(timeout: float | None) -> Deadline:
    return Deadline.after(CALL_SECONDS if timeout is None else timeout or None)
