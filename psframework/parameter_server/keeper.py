"""The keeper of models: decides, beside the coordinator, who counts from when, stores it, tells the shards.

Changes of one model happen one after the other. A record is durable before any shard hears of it, and a
newcomer hears of its first step only when every shard has accepted it: a coordinator that restarts goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass
from typing import Self

from psframework.errors import (
    ArgumentError,
    DeadlineExceeded,
    Evicted,
    PsfError,
    RendezvousTimeout,
    UnknownTable,
)
from psframework.membership.coordinator import Coordinator
from psframework.membership.lease import Reason
from psframework.membership.names import check_name
from psframework.membership.view import Member
from psframework.parameter_server.cell import Cell
from psframework.parameter_server.layout import Layout
from psframework.parameter_server.messages import spec_from_json
from psframework.parameter_server.models import Models
from psframework.parameter_server.partition import Balanced, partitioner_from_spec
from psframework.parameter_server.policy import BSP, Policy, policy_from_spec
from psframework.parameter_server.registry import (
    Applicant,
    ModelRecord,
    ModelSpec,
    ShardRef,
    due_seal,
    table_name,
    wanted_trainers,
)
from psframework.parameter_server.roster import VACANT, Entry, Roster
from psframework.parameter_server.shard_calls import SHARD_ROLE, ShardCalls
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Application:
    """What a registration asks for.

    Args:
        job, model: which model.
        spec: what the applicant brings; without a rule it can't create the model.
        applicant: who.
        partitioner: as JSON; empty for the default.
        keep: the model outlives its job.
    """

    job: str
    model: str
    spec: ModelSpec
    applicant: Applicant
    partitioner: str = ""
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer to a registration.

    Args:
        cell: the model.
        record: as it was when the applicant was admitted.
        writer: the applicant's number.
        initialize: it must send the first values.
    """

    cell: Cell
    record: ModelRecord
    writer: int
    initialize: bool


class Keeper:
    """All models of a cluster; an async context manager, to be entered after its coordinator.

    Args:
        coordinator: members and store.
        security: for calls to shards.
    """

    def __init__(self, coordinator: Coordinator, security: Security) -> None:
        self.coordinator = coordinator
        self.models = Models(coordinator, ShardCalls(security))

    @property
    def term(self) -> int:
        """The coordinator's term."""
        return self.coordinator.term

    async def __aenter__(self) -> Self:
        self.models.load()
        self.coordinator.on_departure(self._departed)
        self.coordinator.on_job_end(self._job_ended)
        for cell in self.models:
            self.models.spawn(self._resume(cell))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.models.close()

    async def register(self, application: Application, deadline: Deadline) -> Admitted:
        """Admits a trainer or a reader, and creates the model for the first trainer.

        Raises:
            UnknownTable: a reader, or an applicant without an optimizer, and there is no such model.
            ModelMismatch: the model differs from the one that is registered.
            RendezvousTimeout: there is no shard, or the initializer did not finish.
            ResourceExhausted: a shard has no room.
            Evicted: the applicant is no member any more.
        """
        check_name(application.job, "job")  # without a slash, so that no two models have one table
        while True:
            cell = self.models.find_or_begin(table_name(application.job, application.model))
            admitted = await self.models.whole(self._try(cell, application, deadline))
            if admitted is not None:
                return admitted
            await cell.until_ready(deadline)

    async def finish_initialization(self, table: str, writer: int, deadline: Deadline) -> None:
        """Every shard holds the first values. Idempotent."""
        await self.models.whole(self._finish(self.models.find(table), writer, deadline))

    async def _finish(self, cell: Cell, writer: int, deadline: Deadline) -> None:
        async with cell.locked(deadline):
            record = cell.current()
            record.registration(writer)
            if record.roster.initializer != writer:
                raise ArgumentError(f"writer {writer} does not initialize {cell.name!r}")
            if not record.roster.ready:
                await self.models.change(cell, record.ready())
            await self._publish(cell, deadline)

    async def leave(self, table: str, writer: int, until_step: int, deadline: Deadline) -> None:
        """Ends a participation; its steps below `until_step` are complete on every shard. Idempotent."""
        try:
            cell = self.models.find(table)
        except UnknownTable:
            return
        await self.models.whole(self._leave(cell, writer, until_step, deadline))

    async def _leave(self, cell: Cell, writer: int, until_step: int, deadline: Deadline) -> None:
        async with cell.locked(deadline):
            record = cell.current()
            if any(r.writer == writer for r in record.registrations):
                await self.models.change(cell, record.ended(writer, until_step))
                await self._publish(cell, deadline)
                await self._seal(cell, deadline)

    async def withdraw(self, table: str, token: str, deadline: Deadline) -> None:
        """Ends the participation of an applicant that gave up before it heard its number."""
        cell = self.models.begun(table)
        if cell is None:
            return
        async with cell.locked(deadline):  # whoever is being admitted has its number then
            registration = cell.record.registered(token) if cell.record is not None else None
        if registration is not None:
            await self.leave(table, registration.writer, 0, deadline)

    async def commit_step(self, table: str, writer: int, step: int, deadline: Deadline) -> None:
        """Under a policy with spares: a step of the writer is complete on every shard. Idempotent."""
        cell = self.models.find(table)
        cell.current().registration(writer)
        cell.committed[writer] = max(step + 1, cell.committed.get(writer, 0))
        await self.models.whole(self._sealing(cell, deadline))

    async def _sealing(self, cell: Cell, deadline: Deadline) -> None:
        async with cell.locked(deadline):
            await self._seal(cell, deadline)

    # Registration

    async def _try(self, cell: Cell, application: Application, deadline: Deadline) -> Admitted | None:
        """Admits the applicant; None if it must try again."""
        async with cell.locked(deadline):
            if cell.lost is not None:
                return None  # another one may be begun
            if cell.record is None:
                try:
                    record = await self._new_record(application, deadline)
                except PsfError as error:
                    self.models.lose(cell, error)  # nothing stays of a name that nobody creates
                    raise
                await self.models.change(cell, record)
            return await self._admit(cell, application, deadline)

    async def _new_record(self, application: Application, deadline: Deadline) -> ModelRecord:
        spec, name = application.spec, table_name(application.job, application.model)
        if application.applicant.reader or not spec.rule or not spec.policy:
            raise UnknownTable(
                f"no model {name!r} is registered: a trainer must create it, with an optimizer"
            )
        asked = application.partitioner or json.dumps(Balanced().spec())
        partitioner = spec_from_json(asked, "partitioner")
        cut, layout = partitioner_from_spec(partitioner).cut, Layout.of(spec.parameters)
        shards = await self._shards(deadline)
        # A shard without a partition would be asked for what it never hears of.
        while (used := len({p.shard for p in cut(layout, len(shards))})) < len(shards):
            shards = shards[:used]
        held = wanted_trainers(_policy(spec)) > 1
        return ModelRecord(
            application.job,
            application.model,
            spec,
            json.dumps(partitioner),
            application.keep,
            tuple(shards),
            self.models.next_number(),
            Roster(held=held),
        )

    async def _shards(self, deadline: Deadline) -> list[ShardRef]:
        coordinator = self.coordinator
        while not (members := [m for m in coordinator.view.select(SHARD_ROLE, None) if m.addresses]):
            try:
                async with asyncio.timeout(deadline.seconds()):
                    await coordinator.changed.wait()
            except TimeoutError:
                raise RendezvousTimeout(
                    "the cluster has no parameter server: start one with `psf serve parameter-server`",
                    missing=[SHARD_ROLE],
                ) from None
        ordered = sorted(members, key=lambda member: _natural(member.name))
        return [ShardRef(m.name, m.incarnation, tuple(m.addresses)) for m in ordered]

    async def _admit(self, cell: Cell, application: Application, deadline: Deadline) -> Admitted | None:
        """Admits the applicant; None if it must wait for the first values."""
        record, applicant = cell.current(), application.applicant
        self._check_live(applicant)
        record.check(application.spec)
        known = record.registered(applicant.token)
        initializes = known is not None and known.writer == record.roster.initializer
        if not record.roster.ready and record.has_initializer and not initializes:
            return None
        if known is None:
            await self._add(cell, applicant, deadline)
        await self._tell_newcomer(cell, applicant, deadline)
        record = cell.current()
        known = record.registered(applicant.token)
        if known is None:
            raise ArgumentError(f"{applicant.member!r} left {record.table!r} while it registered")
        return Admitted(cell, record, known.writer, not record.roster.ready)

    async def _add(self, cell: Cell, applicant: Applicant, deadline: Deadline) -> None:
        record = cell.current()
        if not record.roster.ready and applicant.reader:
            raise UnknownTable(f"model {record.table!r} has no first values: its trainer is gone")
        first = 0 if applicant.reader or not record.roster.ready else await cell.pause(deadline)
        writer = self.models.next_number()
        changed = record.admit(writer, applicant, first, _policy(record.spec))
        await self.models.change(cell, changed if record.roster.ready else changed.initialized_by(writer))
        try:
            self._check_live(applicant)
        except Evicted:  # it died before it could be fenced here
            self.models.spawn(self._fence(cell, applicant.incarnation))
            raise

    def _check_live(self, applicant: Applicant) -> None:
        """Nobody would ever fence who is no member. Foreign clients have no incarnation; they must leave."""
        if applicant.incarnation:
            self.coordinator.registry.check_live(applicant.incarnation)

    async def _tell_newcomer(self, cell: Cell, applicant: Applicant, deadline: Deadline) -> None:
        """Publishes; a newcomer whose first step is closed somewhere gets a later one, and so on."""
        try:
            while not await cell.publish(deadline):
                registration = cell.current().registered(applicant.token)
                assert registration is not None
                first = await cell.pause(deadline)
                await self.models.change(cell, cell.current().moved(registration.writer, first))
        except PsfError as error:
            if not cell.current().roster.ready:
                self.models.lose(cell, error)  # it could not be made; the next registrant begins anew
            elif (registration := cell.current().registered(applicant.token)) is not None:
                await self.models.change(cell, cell.current().ended(registration.writer, 0))
                self.models.spawn(self._repair(cell))
            raise

    # Departures

    def _departed(self, member: Member, reason: Reason) -> None:
        for cell in self.models:
            record = cell.current()
            if any((s.name, s.incarnation) == (member.name, member.incarnation) for s in record.shards):
                why = f"model {cell.name!r} is lost: its shard {member.name} is gone ({reason})"
                self.models.lose(cell, UnknownTable(f"{why}; open the parameter server again"))
            elif any(r.applicant.incarnation == member.incarnation for r in record.registrations):
                self.models.spawn(self._fence(cell, member.incarnation))

    async def _fence(self, cell: Cell, incarnation: int) -> None:
        """Ends every participation of a dead member, with what is complete on all shards."""
        async with cell.locked(Deadline.NEVER):
            record = cell.current()
            policy = _policy(record.spec)
            for registration in record.registrations:
                applicant = registration.applicant
                if applicant.incarnation != incarnation:
                    continue
                until, vacant = 0, False
                if not applicant.reader:
                    # Without first values no step was closed; a shard may not even have the table yet.
                    ready = record.roster.ready
                    until = await cell.fence(registration.writer, Deadline.NEVER) if ready else 0
                    vacant = isinstance(policy, BSP) and policy.on_loss == "wait" and record.roster.ready
                log.info("%s: %s counts below step %d", cell.name, applicant.member, until)
                await self.models.change(
                    cell, cell.current().ended(registration.writer, until, vacant=vacant)
                )
            self._watch_vacancies(cell, policy)
            await cell.publish(Deadline.NEVER)
            await self._seal(cell, Deadline.NEVER)

    def _watch_vacancies(self, cell: Cell, policy: Policy) -> None:
        for entry in cell.current().roster.open_entries():
            watched = any(entry is vacancy for vacancy in cell.vacancies)
            if isinstance(policy, BSP) and entry.writer == VACANT and not watched:
                cell.vacancies.append(entry)
                self.models.spawn(self._give_up(cell, entry, policy.wait))

    async def _give_up(self, cell: Cell, vacancy: Entry, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with cell.locked(Deadline.NEVER):
            cell.vacancies = [each for each in cell.vacancies if each is not vacancy]
            record = cell.current()
            # The same slot may have been taken and be vacant again: that is another one, with its own time.
            if any(entry is vacancy for entry in record.roster.open_entries()):
                log.warning("%s: nobody came back for slot %d in %g s", cell.name, vacancy.slot, seconds)
                await self.models.change(cell, record.given_up(vacancy.slot))
                await cell.publish(Deadline.NEVER)
                await self._seal(cell, Deadline.NEVER)

    def _job_ended(self, job: str) -> None:
        for cell in self.models:
            record = cell.current()
            if record.job == job and not record.keep:
                # Submitted at once: the coordinator forgets the job after what its hooks submitted.
                self.models.lose(cell, UnknownTable(f"job {job!r} ended, and model {record.name!r} with it"))

    async def _resume(self, cell: Cell) -> None:
        """After a restart: ends whoever left meanwhile, and tells the shards of the new term."""
        record = cell.current()
        live = {member.incarnation for member in self.coordinator.view.members}
        for shard in record.shards:
            if shard.incarnation not in live:
                self.models.lose(
                    cell, UnknownTable(f"model {cell.name!r} is lost: its shard {shard.name} is gone")
                )
                return
        for incarnation in {r.applicant.incarnation for r in record.registrations} - live:
            await self._fence(cell, incarnation)
        self._watch_vacancies(cell, _policy(record.spec))
        await self._repair(cell)

    # Publishing

    async def _publish(self, cell: Cell, deadline: Deadline) -> None:
        """Tells the shards of a change that is decided, whatever becomes of whoever asked for it."""
        try:
            await cell.publish(deadline)
        except DeadlineExceeded:
            self.models.spawn(self._repair(cell))
            raise

    async def _repair(self, cell: Cell) -> None:
        async with cell.locked(Deadline.NEVER):
            await cell.publish(Deadline.NEVER)

    async def _seal(self, cell: Cell, deadline: Deadline) -> None:
        policy = _policy(cell.current().spec)
        if not isinstance(policy, BSP) or not policy.spares:
            return
        while (seal := due_seal(cell.current().roster, cell.committed, policy.spares)) is not None:
            await self.models.change(cell, cell.current().sealed(seal))
            await self._publish(cell, deadline)


def _policy(spec: ModelSpec) -> Policy:
    return policy_from_spec(spec_from_json(spec.policy, "policy"))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts shard-10 after shard-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
