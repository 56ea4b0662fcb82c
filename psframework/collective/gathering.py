"""One attempt of this process to get into a group: rendezvous, set-up, start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from psframework.collective import rendezvous, setup, transports
from psframework.collective.decision import decide
from psframework.collective.desk import Desk
from psframework.collective.group import ProcessGroup
from psframework.collective.news import News
from psframework.collective.options import GroupOptions
from psframework.collective.seat import Directory, Seat
from psframework.collective.tuning import Table
from psframework.collective.work import Transport
from psframework.errors import DeadlineExceeded, PeerLost, PsfError
from psframework.membership.client import Membership
from psframework.membership.view import MemberState
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.session.agent import Agent
from psframework.rpc.status import detail_to_error

log = logging.getLogger(__name__)

ALLREDUCE: Final = "allreduce"
"""Role of the service that reduces for members that can't reach each other."""


CANCELLED: Final = "cancelled"
"""Reason of the loss of a rank that did not want the group any more while it was set up."""


LATER_SECONDS: Final = 120.0
"""How long a wish is taken back for, where the coordinator does not answer."""


class Home(Protocol):
    """The groups of this process."""

    agent: Agent
    directory: Directory
    membership: Membership
    news: News

    @property
    def table(self) -> Table:
        """How groups choose by size."""
        ...

    def take(self, seat: Seat) -> None:
        """A generation with this process is sealed: letters for it may come."""
        ...

    def begin(self, seat: Seat, transport: Transport, completed: int, options: GroupOptions) -> ProcessGroup:
        """A generation is set up."""
        ...

    def drop(self, seat: Seat, error: PsfError) -> None:
        """A generation came to nothing, here and so for all of its ranks."""
        ...

    def clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what nobody waits for, before this process leaves."""
        ...


class Gathering:
    """One attempt.

    Args:
        home: the groups of this process.
        job: the scope of the group's name.
        name: of the group.
        ticket: number of the attempt.
        options: what this process wants.
        old: of a group that shrinks, the seat in the generation that is over.
    """

    def __init__(
        self, home: Home, job: str, name: str, ticket: int, options: GroupOptions, old: Seat | None = None
    ) -> None:
        self.job, self.name = job, name
        self._home = home
        self._options = options
        self._old = old
        self._desk = Desk(home.membership.kv, job, name)
        self._stopped: PsfError | None = None
        self._seat: Seat | None = None
        spec = options.spec(home.table)
        if old is not None:
            spec.world_size = 0
        agent, directory = home.agent, home.directory
        self._mine = setup.candidate(
            home.membership.member, directory.listens(), agent.segment_path, spec, ticket
        )
        if options.rank is not None:
            self._mine.rank = options.rank

    def look_again(self) -> None:
        """A member is gone, or stalled."""
        self._desk.notify()

    def stop(self, error: PsfError) -> None:
        """This process gives the attempt up."""
        self._stopped = error
        self._desk.notify()

    async def run(self, deadline: Deadline) -> ProcessGroup:
        """Comes back with the group; see `Groups.open` for the errors."""
        try:
            async with self._desk:
                sealed = await self._meet(deadline)
                group = await self._set_up(sealed, deadline)
        except Exception as error:
            await self._withdraw(self._abandon(error))  # first: who tries again must not meet this attempt
            raise
        except BaseException as error:
            self._home.clean_up(self._withdraw(self._abandon(error)))
            raise
        return group

    # Rendezvous

    async def _meet(self, deadline: Deadline) -> pb.Sealed:
        """Waits until there is a generation with this process."""
        began = boottime()
        if self._old is not None:
            self._old.on_change = self._desk.notify
            self._mine.shrinks = self._old.id.generation
            self._mine.departed.extend(sorted(self._old.departed))
            if self._old.group is not None:
                self._mine.completed = self._old.group.last_completed
        await self._desk.apply(self._mine, deadline)
        mine = rendezvous.ticket(self._mine)
        try:
            while True:
                found = await self._desk.until(lambda: self._look(mine), deadline, "members of the group")
                if self._desk.find(mine) is None:
                    dead = {e.incarnation for e in self._desk.candidates if self._has_ended(e.incarnation)}
                    await self._desk.seal(found, dead, deadline)
                    continue
                if found.HasField("error"):
                    raise detail_to_error(found.error)
                return found
        except DeadlineExceeded:
            raise self._timed_out(boottime() - began) from None

    def _look(self, mine: rendezvous.Ticket) -> pb.Sealed | None:
        """The generation with this process, or one that can be sealed now."""
        if self._stopped is not None:
            raise self._stopped
        return self._desk.find(mine) or self._sealable()

    def _sealable(self) -> pb.Sealed | None:
        if not self._desk.is_current:
            return None
        record, waiting = self._desk.record, self._waiting()
        if self._old is None:
            return rendezvous.seal(self.name, record, waiting)
        same = [each for each in waiting if each.shrinks == self._old.id.generation]
        gone = {
            each.incarnation
            for rank, each in enumerate(self._old.members)
            if rank in self._old.departed or self._is_gone(each.incarnation)
        }
        return rendezvous.seal_survivors(record, same, self._old.members, gone)

    def _waiting(self) -> list[pb.Candidate]:
        living = [each for each in self._desk.candidates if not self._is_gone(each.incarnation)]
        return rendezvous.free(self._desk.record, living)

    def _has_ended(self, incarnation: int) -> bool:
        return self._home.directory.has_ended(incarnation)

    def _is_gone(self, incarnation: int) -> bool:
        """Whether a member is dead, or does not answer for now."""
        if self._has_ended(incarnation):
            return True
        member = self._home.membership.view.get(incarnation)
        return member is not None and member.state is MemberState.STALLED

    def _timed_out(self, seconds: float) -> PsfError:
        waiting = [each for each in self._waiting() if each.shrinks == self._mine.shrinks]
        came = [each.name for each in waiting]
        if self._old is not None:
            wanted = [
                each.name
                for rank, each in enumerate(self._old.members)
                if rank not in self._old.departed and not self._is_gone(each.incarnation)
            ]
            return rendezvous.timed_out(self.name, seconds, len(wanted), came, wanted)
        job = self._home.membership.member.job
        others = [member.name for member in self._home.membership.members(job=job)]
        asked = [each.rank for each in waiting] if all(each.HasField("rank") for each in waiting) else []
        return rendezvous.timed_out(self.name, seconds, self._options.world_size, came, others, asked)

    # Set-up

    async def _set_up(self, sealed: pb.Sealed, deadline: Deadline) -> ProcessGroup:
        home = self._home
        rank = rendezvous.ranks_of(sealed)[self._mine.incarnation]
        id = pb.GroupId(job=self.job, name=self.name, generation=sealed.generation)
        seat = self._seat = Seat(id, rank, sealed.members, home.agent, home.directory, home.news.failed)
        seat.on_change = self._desk.notify
        home.take(seat)
        for member in sealed.members:
            if self._is_gone(member.incarnation):  # it may have gone before anybody looked at this generation
                seat.lose(rendezvous.ranks_of(sealed)[member.incarnation], _gone(member))
        try:
            ready = await self._until_lost(seat, setup.prepare(seat, sealed.members[0].spec, deadline))
            self._mine.ready.CopyFrom(ready)
            await self._desk.apply(self._mine, deadline)
            if rank == 0:
                await self._decide(seat, deadline)
            start = await self._until(lambda: self._started(seat), deadline, "the start of the group")
            home.clean_up(self._done())
            transport = await self._until_lost(
                seat, transports.build(seat, start, home, deadline, sealed.completed)
            )
        except PsfError as error:
            raise seat.error or error from None
        return home.begin(seat, transport, sealed.completed, self._options)

    async def _decide(self, seat: Seat, deadline: Deadline) -> None:
        """Rank 0 waits until all are ready, and says how the group works."""
        ready = await self._until(lambda: self._all_ready(seat), deadline, "the set-up of the group")
        central = bool(self._home.membership.members(role=ALLREDUCE))
        start = decide(self.name, seat.members, ready, central=central)

        def change(sealed: pb.Sealed) -> bool:
            if sealed.HasField("error"):
                return False
            sealed.start.CopyFrom(start)
            return True

        await self._desk.amend(seat.id.generation, change, deadline)

    def _all_ready(self, seat: Seat) -> dict[int, pb.Ready] | None:
        self._check(seat)
        ready: dict[int, pb.Ready] = {}
        for each in self._desk.candidates:
            rank = seat.rank_of(each.incarnation)
            if rank is not None and each.HasField("ready") and each.ticket == seat.members[rank].ticket:
                ready[rank] = each.ready
        return ready if len(ready) == len(seat.members) else None

    def _started(self, seat: Seat) -> pb.Start | None:
        self._check(seat)
        sealed = self._desk.find(rendezvous.ticket(self._mine))
        return sealed.start if sealed is not None and sealed.HasField("start") else None

    def _check(self, seat: Seat) -> None:
        if self._stopped is not None:
            raise self._stopped
        sealed = self._desk.find(rendezvous.ticket(self._mine))
        if sealed is not None and sealed.HasField("error"):
            raise detail_to_error(sealed.error)
        if seat.error is not None:
            raise seat.error

    async def _until(self, look: Callable[[], Any], deadline: Deadline, what: str) -> Any:
        return await self._desk.until(look, deadline, f"{what} {self.name!r}")

    async def _until_lost(self, seat: Seat, work: Any) -> Any:
        """Does a part of the set-up; ends it when a rank is lost meanwhile, or another one has failed."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._desk.notify())

        def look() -> bool | None:
            self._check(seat)
            return task.done() or None

        try:
            await self._desk.until(look, Deadline.NEVER, "")
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # The end

    def _abandon(self, error: BaseException) -> PsfError:
        """Whatever became of it, this process is not in it: others hear of that."""
        if isinstance(error, PsfError):
            why = error
        else:
            who = self._home.membership.member.name
            text = f"{who} gave the set-up of group {self.name!r} up, since it was cancelled there: ask again"
            why = PeerLost(text, peer=who, reason=CANCELLED)
        if self._seat is not None:
            self._home.drop(self._seat, why)
        return why

    async def _withdraw(self, why: PsfError) -> None:
        try:
            await self._desk.give_up(self._mine, why)
        except PsfError as error:  # a coordinator that is away; nobody waits for it here
            log.debug("group %r: %s", self.name, error)
            self._home.clean_up(self._withdraw_later(why))

    async def _withdraw_later(self, why: PsfError) -> None:
        """Else others would wait for this process in a group that it does not ask for any more."""
        try:
            await self._desk.give_up(self._mine, why, LATER_SECONDS)
        except PsfError as error:
            log.warning("group %r: the wish of this process to be in it stays: %s", self.name, error)

    async def _done(self) -> None:
        """This process knows all about its generation."""
        try:
            await self._desk.withdraw(self._mine)
        except PsfError as error:
            log.debug("group %r: %s", self.name, error)


def _gone(member: pb.Candidate) -> PeerLost:
    return PeerLost(f"{member.name} was declared dead", peer=member.name, reason="lease")
