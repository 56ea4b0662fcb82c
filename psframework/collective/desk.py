"""The rendezvous of one group in the coordinator's key-value store: what is there, and careful changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container
from types import TracebackType
from typing import Final, Self, TypeVar

from google.protobuf.message import DecodeError

from psframework.collective import rendezvous
from psframework.collective.rendezvous import Ticket, ticket
from psframework.errors import PsfError
from psframework.membership.jobs import group_keys
from psframework.membership.keys import KeyValue
from psframework.membership.keyvalue import KeyEntry
from psframework.membership.signal import Signal
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.status import error_to_detail

log = logging.getLogger(__name__)
T = TypeVar("T")

RECORD: Final = "record"
CLEAR_SECONDS: Final = 2.0


async def forget(kv: KeyValue, id: pb.GroupId) -> None:
    """Deletes the record of a group whose name is not used again."""
    try:
        key = f"{group_keys(id.job)}{id.name}/{RECORD}"
        await kv.delete(key, deadline=Deadline.after(CLEAR_SECONDS))
    except PsfError as error:
        log.debug("the record of group %r stays: %s", id.name, error)


class Desk:
    """All that is known of a group that is being made. An async context manager: it watches while it is open.

    One key holds the record of the group, and one more each candidate, under its incarnation.

    Args:
        kv: the coordinator's keys.
        job: the scope of the group's name.
        name: of the group.

    Attributes:
        record: the group's record, as far as known.
    """

    def __init__(self, kv: KeyValue, job: str, name: str) -> None:
        self.record = pb.GroupRecord()
        self._kv = kv
        self._prefix = f"{group_keys(job)}{name}/"
        self._revision = 0  # of the record
        self._seen = 0  # the revision that the watch has come to
        self._candidates: dict[str, tuple[int, pb.Candidate]] = {}  # by key, with the revision of its write
        self._changed = Signal()
        self._error: PsfError | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._look(), name="psf-rendezvous")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)

    @property
    def candidates(self) -> list[pb.Candidate]:
        """All that are written down, also those that are in a generation already, or dead; oldest first."""
        return [candidate for _, candidate in sorted(self._candidates.values(), key=lambda each: each[0])]

    @property
    def is_current(self) -> bool:
        """Whether the candidates are at least as new as the record: those it has dropped are gone."""
        return self._seen >= self._revision

    def find(self, wanted: Ticket) -> pb.Sealed | None:
        """The generation that an attempt has come into."""
        return rendezvous.find(self.record, wanted)

    def notify(self) -> None:
        """Something changed that those who wait here look at."""
        self._changed.notify()

    async def until(self, look: Callable[[], T | None], deadline: Deadline, what: str) -> T:
        """Waits until `look()` finds something.

        Raises:
            DeadlineExceeded: naming `what`.
        """
        found: list[T] = []

        def holds() -> bool:
            if self._error is not None:
                raise self._error
            value = look()
            if value is None:
                return False
            found.append(value)
            return True

        await self._changed.until(holds, deadline, what)
        return found[0]

    async def apply(self, candidate: pb.Candidate, deadline: Deadline) -> None:
        """Writes a candidate down, in the place of what it wrote before."""
        value, key = candidate.SerializeToString(), self._key(candidate)
        revision = await self._kv.put(key, value, deadline)
        self._learn(KeyEntry(key, value, revision))

    async def withdraw(self, candidate: pb.Candidate, seconds: float = CLEAR_SECONDS) -> None:
        """Takes a candidate away; not another attempt of the same member, which has the same key."""
        deadline, key = Deadline.after(seconds), self._key(candidate)
        revision, known = self._candidates.get(key, (0, candidate))  # at best its own last one, at once
        while ticket(known) == ticket(candidate):
            if revision and await self._kv.delete(key, revision, deadline):
                return
            entry = await self._kv.get(key, deadline)
            if entry is None or (found := _candidate(entry)) is None:
                return
            revision, known = entry.revision, found

    async def seal(self, sealed: pb.Sealed, dead: Container[int], deadline: Deadline) -> None:
        """Stores one more generation, unless somebody else did something meanwhile.

        Args:
            sealed: the generation.
            dead: incarnations that will not take their candidates away themselves.
            deadline: when to give up.
        """
        living = [each for each in self.candidates if each.incarnation not in dead]
        if await self._write(rendezvous.append(self.record, sealed, living), deadline):
            for each in self.candidates:
                if each.incarnation in dead:
                    with contextlib.suppress(PsfError):  # the next one who seals clears it
                        await self.withdraw(each)

    async def amend(self, generation: int, change: Callable[[pb.Sealed], bool], deadline: Deadline) -> None:
        """Changes a generation, as often as needed: `change` returns False if nothing is to be done."""
        while True:
            record = pb.GroupRecord()
            record.CopyFrom(self.record)
            found = [each for each in record.sealed if each.generation == generation]
            if not found or not change(found[0]) or await self._write(record, deadline):
                return

    async def fail(self, generation: int, error: BaseException, deadline: Deadline) -> None:
        """A generation can't be set up: all its members hear why, if they don't know another reason."""

        def change(sealed: pb.Sealed) -> bool:
            if sealed.HasField("error") or sealed.HasField("start"):
                return False
            sealed.error.CopyFrom(error_to_detail(error))
            return True

        await self.amend(generation, change, deadline)

    async def give_up(
        self, candidate: pb.Candidate, error: BaseException, seconds: float = CLEAR_SECONDS
    ) -> None:
        """A candidate is not there any more, whatever became of it; cleans up, however far it came."""
        deadline = Deadline.after(seconds)
        await self.withdraw(candidate, seconds)
        entry = await self._kv.get(self._prefix + RECORD, deadline)
        if entry is not None:
            self._learn(entry)
        sealed = self.find(ticket(candidate))
        if sealed is not None:
            await self.fail(sealed.generation, error, deadline)

    async def _write(self, record: pb.GroupRecord, deadline: Deadline) -> bool:
        key = self._prefix + RECORD
        data = record.SerializeToString()
        written, entry = await self._kv.compare_and_set(key, self._revision, data, deadline)
        if entry is not None:
            self._learn(entry)
        elif not written:  # it was deleted: with its job, or by who was the last in the group
            self.record, self._revision = pb.GroupRecord(), 0
        return written

    async def _look(self) -> None:
        try:
            async for changes in self._kv.watch(self._prefix):
                for key in changes.deleted:
                    self._candidates.pop(key, None)
                for entry in changes.written:
                    self._learn(entry)
                self._seen = changes.revision
                self.notify()
        except PsfError as error:
            self._error = error
            self.notify()

    def _learn(self, entry: KeyEntry) -> None:
        if entry.key == self._prefix + RECORD:
            if entry.revision > self._revision:
                with contextlib.suppress(DecodeError):  # not ours
                    self.record, self._revision = pb.GroupRecord.FromString(entry.value), entry.revision
                    self.notify()
            return
        candidate, known = _candidate(entry), self._candidates.get(entry.key)
        if candidate is not None and (known is None or entry.revision >= known[0]):
            self._candidates[entry.key] = (entry.revision, candidate)

    def _key(self, candidate: pb.Candidate) -> str:
        return f"{self._prefix}{candidate.incarnation}"


def _candidate(entry: KeyEntry) -> pb.Candidate | None:
    """What a key holds; None if it is not ours."""
    try:
        return pb.Candidate.FromString(entry.value)
    except DecodeError:
        return None
