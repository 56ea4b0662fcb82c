"""The coordinator: holds the pure state, stores what it decides, and tells whoever watches."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from psframework.errors import NameTaken
from psframework.membership import keyvalue, records
from psframework.membership.barrier import BARRIER_PREFIX, BarrierTable
from psframework.membership.barrier_desk import BarrierDesk
from psframework.membership.jobs import JOB_PREFIX, JobTable, group_keys
from psframework.membership.journal import Journal
from psframework.membership.keyvalue import KeyTable
from psframework.membership.lease import LeaseOptions, Reason
from psframework.membership.local_keys import LocalKeyValue
from psframework.membership.registry import JoinSpec, Registry
from psframework.membership.signal import Signal
from psframework.membership.store import Change, Store, Write
from psframework.membership.view import Delta, Member, View
from psframework.rpc.deadline import Clock, Deadline, boottime

log = logging.getLogger(__name__)
TICK = 0.1  # seconds
MemberHook = Callable[[Member, Reason], None]


class Coordinator:
    """One term of the cluster's coordinator; an async context manager.

    Other parts of the coordinator's process (the keeper of models) use it directly: `view`, `keys`,
    `on_join`, `on_departure`, `on_job_end`, `submit`.

    Args:
        store: what it must not forget.
        options: times after which members are stalled or fenced.
        clock: seconds that count suspension.
    """

    def __init__(self, store: Store, *, options: LeaseOptions | None = None, clock: Clock = boottime) -> None:
        self.store = store
        self.clock = clock
        self.term = 0
        self.registry = Registry(clock(), options)
        self.changed = Signal()  # a new view is published
        self.ticked = Signal()
        self._journal = Journal(store)
        self.keys = LocalKeyValue(KeyTable(), self._journal)
        self.barriers = BarrierDesk(BarrierTable(), self.submit, clock)
        self._jobs = JobTable()
        self._streams = itertools.count(1)
        self._join_hooks: list[Callable[[Member], None]] = []
        self._departure_hooks: list[MemberHook] = []
        self._job_hooks: list[Callable[[str], None]] = []
        self._suspended = False
        self._tick_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Coordinator:
        self.term = await asyncio.to_thread(self.store.open)
        try:
            self._load()
            await self._journal.__aenter__()
        except BaseException:
            self.store.close()
            raise
        self._tick_task = asyncio.get_running_loop().create_task(self._tick(), name="coordinator-tick")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._tick_task is not None
        self._tick_task.cancel()
        try:
            await asyncio.gather(self._tick_task, return_exceptions=True)
            await self._journal.__aexit__()
        finally:
            self.store.close()

    @property
    def view(self) -> View:
        """The newest published view."""
        return self.registry.log.view

    def on_join(self, hook: Callable[[Member], None]) -> None:
        """Calls `hook(member)` on the loop for each member that joined, once that is durable."""
        self._join_hooks.append(hook)

    def on_departure(self, hook: MemberHook) -> None:
        """Calls `hook(member, reason)` on the loop for each member that left or was fenced, once durable."""
        self._departure_hooks.append(hook)

    def on_job_end(self, hook: Callable[[str], None]) -> None:
        """Calls `hook(job)` on the loop one lease after the last member of a job left.

        If the coordinator dies before what the hook submits is durable, the hook is called again.
        """
        self._job_hooks.append(hook)

    def has_job(self, job: str) -> bool:
        """Whether a job has members, or had one within the last lease."""
        return job in self._jobs

    def submit(self, change: Change) -> asyncio.Future[None]:
        """Stores and publishes a decided change, after all those submitted before."""
        return self._journal.submit(change)

    async def flushed(self) -> None:
        """Waits until everything decided so far is durable and published."""
        await self._journal.flushed()

    def suspend(self) -> None:
        """Evicts nobody any more, for nobody can renew; sends those in barriers to the next coordinator."""
        self._suspended = True
        self.barriers.stop()

    async def join(self, spec: JoinSpec, deadline: Deadline) -> Member:
        """Admits a member, waiting while the holder of its name is silent.

        Raises:
            NameTaken: the holder lives, or was still silent at the deadline.
            ArgumentError: a name or a lease that can't be.
        """
        asked_at = self.clock()
        while (decided := self.registry.join(spec, asked_at, self.clock())) is None:
            if deadline.expired:
                raise NameTaken(
                    f"the name {spec.name!r} belongs to a member that is silent, but whose lease still runs"
                )
            await self.ticked.wait()
        member, change = decided
        if change is None:
            await self.flushed()
        else:
            await self._published(
                replace(change, writes=change.writes + self._jobs.begin(member.job, self.clock()))
            )
        return member

    async def leave(self, incarnation: int) -> None:
        """Ends a membership; nothing happens if there is none."""
        change = self.registry.leave(incarnation, self.clock())
        await (self.flushed() if change is None else self._published(change))

    def open_stream(self, incarnation: int) -> int:
        """A member watches: from now on its closing says that the process may be gone. Returns its number."""
        stream = next(self._streams)
        self.registry.leases.stream_opened(incarnation, stream)
        return stream

    def close_stream(self, incarnation: int, stream: int) -> None:
        """The stream of that number ended."""
        self.registry.leases.stream_closed(incarnation, stream, self.clock())

    async def views(self) -> AsyncIterator[View | Delta]:
        """Yields the whole view, then what changes; whole again for a watcher that was too slow."""
        known = self.view
        yield known
        number = known.number
        while True:
            delta = self.registry.log.since(number)
            if delta is not None and delta.number == number:
                await self.changed.wait()
                continue
            update = self.view if delta is None else delta
            yield update
            number = update.number

    async def _published(self, change: Change) -> None:
        # Shielded: a caller that goes away doesn't take back what is decided.
        await asyncio.shield(self.submit(change))

    def _load(self) -> None:
        items, now = self.store.items, self.clock()
        self.registry.load(
            [records.read_member(value) for _, value in items(records.MEMBER_PREFIX)],
            incarnation=records.read_number(items(records.INCARNATION_KEY)),
            number=records.read_number(items(records.VIEW_KEY)),
            now=now,
        )
        entries = items(keyvalue.KEY_PREFIX)
        self.keys.table.load(
            [keyvalue.decode_entry(key.removeprefix(keyvalue.KEY_PREFIX), value) for key, value in entries],
            records.read_number(items(keyvalue.REVISION_KEY)),
            items(keyvalue.WRITER_PREFIX),
        )
        self.barriers.table.load(items(BARRIER_PREFIX), now)
        self._jobs.load(items(JOB_PREFIX), now)
        self._jobs.observe(self.view.members, now)
        self.registry.log.listen(self._on_delta)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                self._turn(self.clock())
            except Exception:  # the tick must go on, or nobody is ever fenced again
                log.exception("the coordinator's tick failed")
            self.ticked.notify()

    def _turn(self, now: float) -> None:
        self.barriers.settle(self.barriers.table.tick(self.view.members, now))
        if self._suspended:
            return
        forgotten = self.keys.table.forget(lambda writer: self.view.get(writer) is not None)
        for change in (self.registry.tick(now), self.barriers.table.forget(now), forgotten):
            if change is not None:
                self.submit(change)
        for job in self._jobs.ended(now):
            log.info("job %s ended", job)
            for hook in self._job_hooks:
                _guarded(hook, job)
            for entry in self.keys.table.list(group_keys(job)):
                change = self.keys.table.delete(entry.key).change
                if change is not None:
                    self.submit(change)
            self.submit(Change((Write(JOB_PREFIX + job, None),)))  # after what the hooks submitted

    def _on_delta(self, delta: Delta) -> None:
        self.changed.notify()
        self._jobs.observe(self.view.members, self.clock())
        for departure in delta.departed:
            self.barriers.settle(self.barriers.table.gone(departure.member, departure.reason))
            log.info("%s departed: %s", departure.member.name, departure.reason)
            for hook in self._departure_hooks:
                _guarded(hook, departure.member, departure.reason)
        for member in delta.joined:
            for join_hook in self._join_hooks:
                _guarded(join_hook, member)


def _guarded(hook: Callable[..., None], *arguments: object) -> None:
    """One broken hook must not keep the others, or the journal, from going on."""
    try:
        hook(*arguments)
    except Exception:
        log.exception("a membership hook failed")
