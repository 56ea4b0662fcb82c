"""The process groups of one connection: made, found by name, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Protocol, Self
from weakref import WeakValueDictionary

import numpy as np

from psframework.collective import tuning_file
from psframework.collective.desk import forget
from psframework.collective.gathering import CANCELLED, Gathering
from psframework.collective.group import Place, ProcessGroup
from psframework.collective.news import TELL_SECONDS, News
from psframework.collective.options import GroupOptions
from psframework.collective.recorder import Standing
from psframework.collective.seat import Directory, Seat
from psframework.collective.servicer import CollectiveService
from psframework.collective.tuning import Table
from psframework.errors import (
    ArgumentError,
    ContextClosed,
    DeadlineExceeded,
    Evicted,
    NotRegistered,
    PeerLost,
    PsfError,
)
from psframework.membership.client import Membership
from psframework.membership.names import check_name
from psframework.membership.signal import Signal
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.remote_client import Remote
from psframework.rpc.session.agent import Agent

log = logging.getLogger(__name__)

REMEMBERED: Final = 1024
"""Generations that have ended here."""

Key = tuple[str, str, int]
"""Job, name and generation."""


class Lost(Protocol):
    """A member, as `membership.on_lost` tells of it."""

    @property
    def incarnation(self) -> int: ...


class Groups:
    """The groups of one connection. An async context manager; part of a `Cluster`.

    Its `lost` and `evicted` are hooks for the membership.

    Args:
        agent: this process's sessions; the service is mounted there.
        remote: the way to members.
        directory: knows them.
        membership: this process as one of them, with the keys for the rendezvous.
    """

    def __init__(self, agent: Agent, remote: Remote, directory: Directory, membership: Membership) -> None:
        self.agent, self.directory, self.membership = agent, directory, membership
        self.news = News(remote.routes)
        self._seats: dict[Key, Seat] = {}
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._gathering: dict[Gathering, None] = {}
        self._changed = Signal()  # a seat was taken, or a gathering has ended
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._tickets = itertools.count(1)
        self._cleaning: set[asyncio.Future[None]] = set()
        self._closed = False
        agent.mount(CollectiveService(self))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all groups that are open here; the other ranks learn of it."""
        self._closed = True
        groups = [seat.group for seat in self._seats.values() if seat.group is not None]
        for gathering in list(self._gathering):
            gathering.stop(_left())
        for failed in await asyncio.gather(*(group.close() for group in groups), return_exceptions=True):
            if isinstance(failed, Exception):
                log.warning("closing a group: %s", failed)
        for seat in list(self._seats.values()):
            self._drop(seat, _left())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_SECONDS):
                while self._gathering:  # they have been told
                    await self._changed.wait()
        if self._cleaning:
            await asyncio.wait(self._cleaning, timeout=TELL_SECONDS)
        for task in self._cleaning:
            task.cancel()

    # Groups

    @cached_property
    def table(self) -> Table:
        """How its groups choose by size: what this user has measured, read once; to be set by benchmarks."""
        return tuning_file.load()

    async def open(self, job: str, name: str, options: GroupOptions, deadline: Deadline) -> ProcessGroup:
        """Waits for the other members, and sets the group up; the group of that name, if it lives here.

        Raises:
            RendezvousTimeout: names who came, and how many did not.
            ArgumentError: members ask for different things, or for ranks that can't be; on all of them.
            ConfigurationError: this user's tuning table is none.
            PeerLost: a member was lost meanwhile, or can't be reached; names it.
            DeadlineExceeded: the set-up took too long.
        """
        check_name(name, "group")
        options.check()
        async with self._turn(job, name, deadline):
            if self._closed:
                raise _left()
            for seat in [seat for key, seat in self._seats.items() if key[:2] == (job, name)]:
                group = seat.group
                if group is not None and seat.lives:
                    if seat.members[seat.rank].spec != options.spec(self.table):
                        raise ArgumentError(f"group {name!r} is open here, with {len(seat.members)} members")
                    return group
                if group is not None and not seat.shrinks:
                    await group.close()  # it came to its end before
            return await self._gather(
                lambda: Gathering(self, job, name, next(self._tickets), options), deadline
            )

    async def shrink(self, group: ProcessGroup, deadline: Deadline) -> ProcessGroup:
        """The group of those that survived: its next generation.

        Raises:
            ArgumentError: the group has lost nobody.
            ContextClosed: it is closed here.
            RendezvousTimeout: members live, but did not ask for it.
            Evicted: to the others this member is lost.
        """
        seat, mine = self._seat(group), self.membership.member
        if seat.members[seat.rank].incarnation != mine.incarnation:
            raise Evicted(f"{mine.name} was evicted, and with it left group {group.name!r}")
        if seat.lives:
            raise ArgumentError(
                f"group {group.name!r} has lost nobody: shrink() is for what is left after a failure"
            )
        options = GroupOptions(
            1, deterministic=seat.members[seat.rank].spec.deterministic,
            algorithm=seat.members[seat.rank].spec.algorithm, timeout=group.place.timeout,
        )  # fmt: skip
        async with self._turn(seat.id.job, seat.id.name, deadline):
            seat.shrinks = True
            new = await self._gather(
                lambda: Gathering(self, seat.id.job, seat.id.name, next(self._tickets), options, seat),
                deadline,
            )
        try:
            await group.close()
        except BaseException:  # cancelled: nobody gets the new one
            self.clean_up(new.close())
            raise
        return new

    async def split(
        self, group: ProcessGroup, color: int | None, key: int, deadline: Deadline
    ) -> ProcessGroup | None:
        """The group of those ranks that said the same color, ordered by `key`, then by rank.

        It takes an all-gather of the group, so all ranks call it, in call order.
        """
        seat = self._seat(group)
        seat.splits += 1
        name = f"{group.name}.{group.generation}.{seat.splits}.{color}"
        said = np.array([color is not None, color or 0, key], np.int64)
        rows = (await group.all_gather(said, timeout=deadline.seconds() or 0)).tolist()
        if color is None:
            return None
        mine = sorted((row[2], rank) for rank, row in enumerate(rows) if row[:2] == [1, color])
        spec = seat.members[seat.rank].spec
        options = GroupOptions(
            len(mine), [rank for _, rank in mine].index(group.rank), spec.deterministic, spec.algorithm,
            group.place.timeout,
        )  # fmt: skip
        part = await self.open(seat.id.job, name, options, deadline)
        self._seat(part).is_part = True
        return part

    @asynccontextmanager
    async def _turn(self, job: str, name: str, deadline: Deadline) -> AsyncIterator[None]:
        """One attempt at a time for each name."""
        lock = self._locks.setdefault((job, name), asyncio.Lock())
        try:
            async with asyncio.timeout(deadline.seconds()):
                await lock.acquire()
        except TimeoutError:
            text = f"group {name!r}: another call of this process for it did not end in time"
            raise DeadlineExceeded(text) from None
        try:
            yield
        finally:
            lock.release()

    async def _gather(self, make: Callable[[], Gathering], deadline: Deadline) -> ProcessGroup:
        """Attempts until one succeeds, or fails by more than that another member took its wish back."""
        while True:
            gathering = make()
            self._gathering[gathering] = None
            try:
                return await gathering.run(deadline)
            except PeerLost as error:
                if error.reason != CANCELLED or deadline.expired or self._closed:
                    raise
                log.info("%s; waiting for another", error)
            finally:
                del self._gathering[gathering]
                self._changed.notify()

    # For gatherings

    def take(self, seat: Seat) -> None:
        """A generation with this process is sealed: letters for it may come."""
        self._seats[_key(seat.id)] = seat
        self._changed.notify()

    def begin(self, seat: Seat, transport: Any, completed: int, options: GroupOptions) -> ProcessGroup:
        """A generation is set up."""
        place = Place(seat.id.name, seat.id.generation, seat.rank, seat.names, completed)
        if options.timeout is not None:
            place = replace(place, timeout=options.timeout)
        seat.group = ProcessGroup(place, transport, seat.post if len(seat.members) > 1 else None, self)
        return seat.group

    def drop(self, seat: Seat, error: PsfError) -> None:
        """A generation came to nothing, here and so for all of its ranks."""
        self.news.failed(seat, error)
        if seat.group is not None:
            seat.abort(error)
            self.clean_up(seat.group.close())
        self._drop(seat, error)

    def clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what nobody waits for, before this process leaves."""
        task = asyncio.ensure_future(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    # As the Keeper of groups

    def ended(self, group: ProcessGroup, error: BaseException) -> None:
        """The group failed here: all ranks hear of it."""
        try:
            seat = self._seat(group)
        except ContextClosed:  # it was closed meanwhile, and they have heard of that
            return
        seat.end(error)
        self.news.failed(seat, error)

    async def standings(self, group: ProcessGroup, deadline: Deadline) -> Mapping[int, Standing]:
        """Where the other ranks are, of those that answer in time."""
        return await self.news.standings(self._seat(group), deadline)

    async def leave(self, group: ProcessGroup) -> None:
        """This rank closes the group; the others are told, and what they still need of it is there."""
        try:
            seat = self._seat(group)
        except ContextClosed:
            return
        try:
            if seat.error is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TELL_SECONDS):
                        await seat.post.settle()
        finally:  # also if it was cancelled: they would wait
            in_order = seat.error is None
            if in_order and seat.is_part and seat.rank == 0:  # nobody asks for this name again
                self.clean_up(forget(self.membership.kv, seat.id))
            self._drop(seat, ContextClosed(f"group {group.name!r} was closed here"))
            # After a failure too: who shrinks the group does not wait for this rank.
            await self.news.closed(seat, group.recorder.last_shared, group.error, wait=in_order)

    # For the servicer

    async def find(self, id: pb.GroupId, deadline: Deadline) -> Seat:
        """The seat in a generation; waits for one that is being taken."""
        key = _key(id)
        while True:
            seat = self._seats.get(key)
            if seat is not None:
                return seat
            if key in self._ended:
                raise ContextClosed(f"generation {id.generation} of group {id.name!r} has ended here")
            if not any((each.job, each.name) == key[:2] for each in self._gathering):
                raise NotRegistered(
                    f"{self.agent.identity.name} is not in generation {id.generation} of group {id.name!r}"
                )
            try:
                async with asyncio.timeout(deadline.seconds()):
                    await self._changed.wait()
            except TimeoutError:
                text = f"generation {id.generation} of group {id.name!r} is not made here yet"
                raise DeadlineExceeded(text) from None

    def pass_on(self, seat: Seat, error: BaseException) -> None:
        """This rank was told that the group has ended."""
        self.news.heard(seat, error)

    # As hooks of the membership

    def lost(self, member: Lost, reason: str) -> None:
        """A member is gone, or stalled: whatever waits for it ends."""
        for seat in list(self._seats.values()):
            rank = seat.rank_of(member.incarnation)
            if rank is not None:
                name = seat.names[rank]
                text = (
                    f"{name} left the cluster"
                    if str(reason) == "left"
                    else f"{name} was declared dead: {reason}"
                )
                why = "closed" if str(reason) == "left" else str(reason)
                seat.lose(rank, PeerLost(text, peer=name, reason=why))
        for gathering in list(self._gathering):
            gathering.look_again()

    def evicted(self, error: Evicted) -> None:
        """The cluster has given this process up, and with it its groups."""
        for seat in list(self._seats.values()):
            seat.abort(error)
        for gathering in list(self._gathering):
            gathering.stop(error)

    def _seat(self, group: ProcessGroup) -> Seat:
        for seat in self._seats.values():
            if seat.group is group:
                return seat
        raise ContextClosed(f"group {group.name!r} was closed here")

    def _drop(self, seat: Seat, error: BaseException) -> None:
        key = _key(seat.id)
        if self._seats.pop(key, None) is None:
            return
        self._ended[key] = None
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        seat.end(error)
        seat.forget()


def _left() -> ContextClosed:
    return ContextClosed("this process has left the cluster, and with it its groups")


def _key(id: pb.GroupId) -> Key:
    return id.job, id.name, id.generation
