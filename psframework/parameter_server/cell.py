"""One model in the keeper's hands: its durable record, and what its shards have been told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from psframework.errors import DeadlineExceeded, PsfError, RendezvousTimeout, UnknownTable
from psframework.membership.signal import Signal
from psframework.parameter_server.layout import Layout
from psframework.parameter_server.messages import partition_to_message, roster_to_message
from psframework.parameter_server.partition import Partition, partitioner_from_spec
from psframework.parameter_server.registry import ModelRecord, ShardRef
from psframework.parameter_server.roster import Entry
from psframework.parameter_server.shard_calls import ShardCalls
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.deadline import Deadline

M = TypeVar("M", bound=Message)
PAUSE_SECONDS: Final = 2.0


class Cell:
    """A model, its lock, and its shards.

    Args:
        name: of the table.
        record: as stored; None while the model is being created.
        calls: to shards.
        term: the coordinator's term.

    Attributes:
        record: the newest durable record.
        lost: why the model is gone for good; None while it is there.
        changed: notified after each change of these two.
        committed: under a policy with spares: by writer, its steps below are complete on every shard.
        vacancies: entries of slots that wait for a restart, and are watched.
    """

    def __init__(
        self, name: str, record: ModelRecord | None, calls: ShardCalls, term: Callable[[], int]
    ) -> None:
        self.name = name
        self.record = record
        self.lost: PsfError | None = None
        self.changed = Signal()
        self.committed: dict[int, int] = {}
        self.vacancies: list[Entry] = []
        self.closed_below = 0
        self._calls = calls
        self._term = term
        self._lock = asyncio.Lock()
        self._told: dict[str, int] = {}  # shard -> number of the roster that it has taken

    @asynccontextmanager
    async def locked(self, deadline: Deadline) -> AsyncIterator[None]:
        """Changes of one model happen one after the other."""
        try:
            async with asyncio.timeout(deadline.seconds()):
                await self._lock.acquire()
        except TimeoutError:
            raise DeadlineExceeded(f"model {self.name!r} is busy with another change") from None
        try:
            yield
        finally:
            self._lock.release()

    def current(self) -> ModelRecord:
        """The newest durable record; raises if there is none, or the model is lost."""
        self.check()
        if self.record is None:
            raise UnknownTable(f"no model {self.name!r}")
        return self.record

    def check(self) -> None:
        """Raises why the model is lost, if it is."""
        if self.lost is not None:
            raise self.lost

    def set(self, record: ModelRecord) -> None:
        """A record became durable."""
        self.record = record
        self.changed.notify()

    def lose(self, reason: PsfError) -> None:
        """The model is gone; whatever waits for its shards ends."""
        self.lost = reason
        self.changed.notify()

    async def until_ready(self, deadline: Deadline) -> None:
        """Waits until the first values are there, or nobody is left who would send them."""

        def settled() -> bool:
            record = self.record
            return (
                self.lost is not None or record is None or record.roster.ready or not record.has_initializer
            )

        try:
            await self.changed.until(settled, deadline, "")
        except DeadlineExceeded:
            names = [r.applicant.member for r in self.current().registrations]
            text = f"{', '.join(names)} did not send the first values of {self.name!r} in time"
            raise RendezvousTimeout(text, missing=names) from None

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions of the model."""
        record = self.current()
        partitioner = partitioner_from_spec(json.loads(record.partitioner))
        return partitioner.cut(Layout.of(record.spec.parameters), len(record.shards))

    async def publish(self, deadline: Deadline) -> bool:
        """Tells the newest roster to shards that lack it; False if one has closed a newcomer's step."""
        record = self.current()
        number = record.roster.number
        late = [shard for shard in record.shards if self._told.get(shard.name) != number]
        replies = await _all(self._tell(shard, record, deadline) for shard in late)
        for shard, reply in zip(late, replies):
            if reply.accepted:
                self._told[shard.name] = number
        if replies and len(late) == len(record.shards):
            self.closed_below = min(reply.next_step for reply in replies)
        return all(reply.accepted for reply in replies)

    async def pause(self, deadline: Deadline) -> int:
        """Holds back the next steps on all shards; returns the first step that none has closed."""
        record = self.current()
        request = pb.PauseRoundsRequest(table=self.name, term=self._term(), seconds=PAUSE_SECONDS)
        replies = await _all(
            self._calls.call(shard, "PauseRounds", request, pb.PauseRoundsReply, deadline, self.check)
            for shard in record.shards
        )
        return max(reply.next_step for reply in replies)

    async def fence(self, writer: int, deadline: Deadline) -> int:
        """Refuses a writer on all shards; returns its first step that is not complete on all of them."""
        record = self.current()
        request = pb.FenceWriterRequest(table=self.name, term=self._term(), writer=writer)
        replies = await _all(
            self._calls.call(shard, "FenceWriter", request, pb.FenceWriterReply, deadline, self.check)
            for shard in record.shards
        )
        return min(reply.complete for reply in replies)

    async def drop(self, deadline: Deadline) -> None:
        """Frees the table on all shards that still answer."""
        record = self.record
        if record is None:
            return
        request = pb.DropTableRequest(table=self.name, term=self._term(), creation=record.creation)
        calls = [
            self._calls.call(shard, "DropTable", request, pb.DropTableReply, deadline)
            for shard in record.shards
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    async def _tell(self, shard: ShardRef, record: ModelRecord, deadline: Deadline) -> pb.PublishRosterReply:
        request = pb.PublishRosterRequest(
            table=self.name, term=self._term(), roster=roster_to_message(record.roster)
        )
        call = self._calls.call
        if shard.name not in self._told and not record.roster.ready:
            await self._create(shard, record, deadline)
        return await call(shard, "PublishRoster", request, pb.PublishRosterReply, deadline, self.check)

    async def _create(self, shard: ShardRef, record: ModelRecord, deadline: Deadline) -> None:
        """Repeated for one making of the model, it changes nothing."""
        index = record.shards.index(shard)
        request = pb.CreateTableRequest(
            table=self.name,
            term=self._term(),
            partitions=[partition_to_message(p) for p in self.partitions if p.shard == index],
            rule=record.spec.rule,
            policy=record.spec.policy,
            roster=roster_to_message(record.roster),
            shards=len(record.shards),
            creation=record.creation,
        )
        await self._calls.call(shard, "CreateTable", request, pb.CreateTableReply, deadline, self.check)


async def _all(calls: Iterable[Coroutine[Any, Any, M]]) -> list[M]:
    """The results of all calls; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
