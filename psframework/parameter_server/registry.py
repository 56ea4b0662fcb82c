"""What the keeper knows of one model, and how it changes: each change makes a record with a higher number.

Pure: the keeper stores a record before it tells anybody of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from psframework.errors import ModelMismatch, NotRegistered
from psframework.parameter_server.layout import ParameterSpec, check_same
from psframework.parameter_server.policy import BSP, Policy
from psframework.parameter_server.roster import VACANT, Entry, Roster, Seal

KEPT_SEALS = 64


@dataclass(frozen=True, slots=True)
class ShardRef:
    """One life of one shard."""

    name: str
    incarnation: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who registers.

    Args:
        member: its member name.
        incarnation: of that member.
        token: random; the same in each retry of one registration.
        reader: it only pulls.
    """

    member: str
    incarnation: int
    token: str
    reader: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """An applicant with its number."""

    writer: int
    applicant: Applicant


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What all who share a model must agree on.

    Args:
        parameters: in their order.
        rule: update rule as JSON; empty: no opinion.
        policy: consistency policy as JSON; empty: no opinion.
    """

    parameters: tuple[ParameterSpec, ...]
    rule: str = ""
    policy: str = ""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """One model.

    Args:
        job: its job.
        name: its name in the job.
        spec: parameters, rule and policy.
        partitioner: as JSON.
        keep: it outlives its job.
        shards: who holds it.
        creation: number of this making of the model, unique for ever.
        roster: who counts.
        next_slot: lowest slot that was never used.
        registrations: of all who take part now.
    """

    job: str
    name: str
    spec: ModelSpec
    partitioner: str
    keep: bool
    shards: tuple[ShardRef, ...]
    creation: int
    roster: Roster = field(default_factory=Roster)
    next_slot: int = 0
    registrations: tuple[Registration, ...] = ()

    @property
    def table(self) -> str:
        """Its name on the shards."""
        return table_name(self.job, self.name)

    def check(self, spec: ModelSpec) -> None:
        """Compares with what an applicant brings; ModelMismatch names the difference."""
        check_same(self.spec.parameters, spec.parameters, self.name)
        for what, ours, theirs in (
            ("optimizer", spec.rule, self.spec.rule),
            ("consistency policy", spec.policy, self.spec.policy),
        ):
            if ours and not _same(ours, theirs):
                raise ModelMismatch(f"model {self.name!r}: {what} {ours}, registered is {theirs}")

    @property
    def has_initializer(self) -> bool:
        """Whether somebody is to send the first values, or has sent them and still takes part."""
        return any(r.writer == self.roster.initializer for r in self.registrations)

    def registered(self, token: str) -> Registration | None:
        """The registration that an earlier try of the same request made."""
        return next((r for r in self.registrations if r.applicant.token == token), None)

    def registration(self, writer: int) -> Registration:
        """The registration of a writer; NotRegistered if it left, was fenced, or never was."""
        for registration in self.registrations:
            if registration.writer == writer:
                return registration
        raise NotRegistered(
            f"writer {writer} is not registered with {self.table!r}: open the parameter server again"
        )

    def entry(self, writer: int) -> Entry | None:
        """The open entry of a trainer."""
        return next((e for e in self.roster.open_entries() if e.writer == writer != VACANT), None)

    def vacancy(self, member: str) -> Entry | None:
        """The slot that waits for this member's restart."""
        return next((e for e in self.roster.open_entries() if e.writer == VACANT and e.name == member), None)

    def _with(self, roster: Roster, **changes: object) -> ModelRecord:
        numbered = dataclasses.replace(roster, number=self.roster.number + 1)
        return dataclasses.replace(self, roster=numbered, **changes)  # type: ignore[arg-type]

    def admit(self, writer: int, applicant: Applicant, from_step: int, policy: Policy) -> ModelRecord:
        """Adds an applicant; a trainer counts from `from_step`, or from where its vacant slot stopped."""
        registrations = (*self.registrations, Registration(writer, applicant))
        if applicant.reader:
            roster = dataclasses.replace(self.roster, readers=self.roster.readers | {writer})
            return self._with(roster, registrations=registrations)
        vacancy = self.vacancy(applicant.member)
        slot = vacancy.slot if vacancy else self.next_slot
        start = vacancy.from_step if vacancy else from_step
        entry = Entry(slot, writer, applicant.incarnation, applicant.member, start)
        entries = (*(e for e in self.roster.entries if e is not vacancy), entry)
        held = self.roster.held and _live(entries) < wanted_trainers(policy)
        roster = dataclasses.replace(self.roster, entries=entries, held=held)
        return self._with(roster, registrations=registrations, next_slot=max(self.next_slot, slot + 1))

    def moved(self, writer: int, from_step: int) -> ModelRecord:
        """A newcomer that nobody has told of its first step gets a later one."""
        entries = tuple(
            dataclasses.replace(e, from_step=from_step) if e.writer == writer and e.open else e
            for e in self.roster.entries
        )
        return self._with(dataclasses.replace(self.roster, entries=entries))

    def initialized_by(self, writer: int) -> ModelRecord:
        """Names the writer whose first values count."""
        return self._with(dataclasses.replace(self.roster, initializer=writer))

    def ready(self) -> ModelRecord:
        """The first values are complete on every shard."""
        return self._with(dataclasses.replace(self.roster, ready=True))

    def ended(self, writer: int, until_step: int, *, vacant: bool = False) -> ModelRecord:
        """Ends a participation.

        Args:
            writer: whose.
            until_step: a trainer's first step that does not count.
            vacant: keep the slot for the member's restart.
        """
        entries: list[Entry] = []
        for entry in self.roster.entries:
            if entry.writer != writer or not entry.open:
                entries.append(entry)
                continue
            until = max(until_step, entry.from_step)
            entries.append(dataclasses.replace(entry, until_step=until))
            if vacant:
                entries.append(Entry(entry.slot, VACANT, 0, entry.name, until))
        roster = dataclasses.replace(
            self.roster, entries=tuple(entries), readers=self.roster.readers - {writer}
        )
        kept = tuple(r for r in self.registrations if r.writer != writer)
        return self._with(roster, registrations=kept)

    def given_up(self, slot: int) -> ModelRecord:
        """Nobody came back for a vacant slot."""
        entries = tuple(
            e for e in self.roster.entries if not (e.slot == slot and e.writer == VACANT and e.open)
        )
        return self._with(dataclasses.replace(self.roster, entries=entries))

    def sealed(self, seal: Seal) -> ModelRecord:
        """Closes a step by decision."""
        seals = (*self.roster.seals, seal)[-KEPT_SEALS:]
        return self._with(dataclasses.replace(self.roster, seals=seals))

    def pruned(self, closed_below: int) -> ModelRecord:
        """Forgets spans that ended before a step which every shard has closed; the number stays."""
        entries = tuple(e for e in self.roster.entries if e.until_step is None or e.until_step > closed_below)
        return dataclasses.replace(self, roster=dataclasses.replace(self.roster, entries=entries))


def _same(ours: str, theirs: str) -> bool:
    """Whether two specs say the same: order of keys, or 1 for 1.0, is no difference."""
    try:
        return ours == theirs or bool(json.loads(ours) == json.loads(theirs))
    except ValueError:
        return False


def table_name(job: str, model: str) -> str:
    """The name of a model on the shards."""
    return f"{job}/{model}"


def wanted_trainers(policy: Policy) -> int:
    """How many trainers must have registered before step 0 may be closed."""
    return (policy.trainers or 1) if isinstance(policy, BSP) else 1


def _live(entries: tuple[Entry, ...]) -> int:
    return sum(1 for entry in entries if entry.open and entry.writer != VACANT)


def due_seal(roster: Roster, committed: Mapping[int, int], spares: int) -> Seal | None:
    """The next seal, once all but `spares` of the trainers that count have completed the step.

    Args:
        roster: who counts.
        committed: by writer, its steps below this number are complete on every shard.
        spares: how many may be missing.
    """
    if roster.held or not roster.ready:
        return None
    step = roster.seals[-1].step + 1 if roster.seals else 0
    active = list(roster.active(step))
    there = tuple(e.slot for e in active if committed.get(e.writer, 0) > step or not e.open)
    needed = max(1, len(active) - spares)
    return Seal(step, there) if len(there) >= needed else None
