"""Who is in a group, and as which rank: decided from what candidates wrote. No I/O."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from psframework.collective.tuning import Table
from psframework.errors import ArgumentError, PsfError, RendezvousTimeout
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.status import error_to_detail

_MOST: Final = 8  # members that a message lists
_DIGITS: Final = re.compile(r"(\d+)")

Ticket = tuple[int, int]
"""(incarnation, ticket): one attempt of one member."""


def ticket(candidate: pb.Candidate) -> Ticket:
    """Which attempt it is."""
    return candidate.incarnation, candidate.ticket


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts trainer-2 before trainer-10."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name))


def free(record: pb.GroupRecord, candidates: Iterable[pb.Candidate]) -> list[pb.Candidate]:
    """The candidates that are in no generation yet."""
    taken = {ticket(member) for sealed in record.sealed for member in sealed.members}
    return [each for each in candidates if ticket(each) not in taken]


def find(record: pb.GroupRecord, wanted: Ticket) -> pb.Sealed | None:
    """The generation that an attempt has come into."""
    for sealed in record.sealed:
        if any(ticket(member) == wanted for member in sealed.members):
            return sealed
    return None


def append(record: pb.GroupRecord, sealed: pb.Sealed, candidates: Iterable[pb.Candidate]) -> pb.GroupRecord:
    """The record with one more generation, and without those that all their members know of.

    A member takes its candidate away once it knows.
    """
    waiting = {ticket(each) for each in candidates}
    after = pb.GroupRecord(generation=sealed.generation)
    for old in record.sealed:
        if any(ticket(member) in waiting for member in old.members):
            after.sealed.append(old)
    after.sealed.append(sealed)
    return after


def seal(name: str, record: pb.GroupRecord, waiting: Sequence[pb.Candidate]) -> pb.Sealed | None:
    """The next generation of a group; None while members are missing.

    Args:
        name: of the group, for messages.
        record: as stored.
        waiting: the living candidates that are in no generation, in the order in which they came.
    """
    waiting = [each for each in waiting if not each.shrinks]
    if not waiting:
        return None
    sealed = pb.Sealed(generation=record.generation + 1)
    error: PsfError | None = None
    size = min(each.spec.world_size for each in waiting)
    if len(waiting) < size:
        return None
    if any(each.spec != waiting[0].spec for each in waiting):
        chosen, error = list(waiting), _differ(name, waiting)
    else:
        chosen = list(waiting[:size])
        error = _wrong_ranks(name, chosen)
    chosen.sort(key=lambda each: (each.rank if each.HasField("rank") else 0, natural(each.name)))
    sealed.members.extend(chosen)
    if error is not None:
        sealed.error.CopyFrom(error_to_detail(error))
    return sealed


def seal_survivors(
    record: pb.GroupRecord, waiting: Iterable[pb.Candidate], old: Sequence[pb.Candidate], gone: Container[int]
) -> pb.Sealed | None:
    """The generation of those that survived an older one; None while some of them are missing.

    Args:
        record: as stored.
        waiting: as for `seal`.
        old: members of the older generation, by rank.
        gone: incarnations that are dead.
    """
    came = {each.incarnation: each for each in waiting if each.shrinks}
    departed = {rank for each in came.values() for rank in each.departed}
    for rank, member in enumerate(old):
        if member.incarnation not in came and rank not in departed and member.incarnation not in gone:
            return None
    survivors = [came[member.incarnation] for member in old if member.incarnation in came]
    if not survivors:
        return None
    before = max(record.generation, survivors[0].shrinks)  # the record may have been deleted
    sealed = pb.Sealed(generation=before + 1, members=survivors)
    sealed.completed = min(each.completed for each in survivors)
    return sealed


def timed_out(
    name: str,
    seconds: float,
    size: int,
    came: Iterable[str],
    others: Iterable[str],
    asked: Iterable[int] = (),
) -> RendezvousTimeout:
    """The error of a candidate that has waited long enough.

    Args:
        name: of the group.
        seconds: how long it waited.
        size: how many were wanted.
        came: names of those that came.
        others: names of members of the job, among which those may be that did not.
        asked: the ranks that those asked for that came, if they all did.
    """
    there = sorted(came, key=natural)
    missing = sorted(set(others) - set(there), key=natural)
    text = (
        f"group {name!r}: {len(there)} of {size} members came within {seconds:.3g} s: {_listed(there)}; "
        f"{size - len(there)} did not"
    )
    ranks = set(asked)
    if ranks:
        text += f": rank {_listed([str(rank) for rank in range(size) if rank not in ranks])}"
    if missing:
        text += f"; members that did not ask: {_listed(missing)}"
    return RendezvousTimeout(text, missing=missing)


def _differ(name: str, candidates: Sequence[pb.Candidate]) -> ArgumentError:
    asked: dict[str, list[str]] = {}
    tables = len({each.spec.tuning for each in candidates}) > 1
    for each in candidates:
        what = describe(each.spec) + (f", {_table(each.spec)}" if tables else "")
        asked.setdefault(what, []).append(each.name)
    parts = [f"{what} ({_listed(sorted(who, key=natural))})" for what, who in asked.items()]
    text = f"group {name!r}: its members ask for different things: {'; '.join(parts)}"
    return ArgumentError(f"{text}; give all the same file (PSF_TUNING)" if tables else text)


def _table(spec: pb.GroupSpec) -> str:
    return "built-in tuning table" if spec.tuning == Table().digest else f"tuning table {spec.tuning}"


def _wrong_ranks(name: str, candidates: Sequence[pb.Candidate]) -> ArgumentError | None:
    """Ranks are given by all of them or by none, each once."""
    wanted: dict[int, list[str]] = {}
    for each in candidates:
        if each.HasField("rank"):
            wanted.setdefault(each.rank, []).append(each.name)
    if not wanted:
        return None
    size, problems = len(candidates), []
    problems += [f"rank {rank} by {' and '.join(who)}" for rank, who in wanted.items() if len(who) > 1]
    problems += [f"rank {rank} of {size} by {who[0]}" for rank, who in wanted.items() if not 0 <= rank < size]
    problems += [f"none by {each.name}" for each in candidates if not each.HasField("rank")]
    if not problems:
        return None
    return ArgumentError(f"group {name!r}: ranks 0 to {size - 1} are needed, asked was {', '.join(problems)}")


def describe(spec: pb.GroupSpec) -> str:
    """What a candidate asks for, for people."""
    text = f"world_size={spec.world_size}"
    if spec.deterministic:
        text += ", deterministic=True"
    if spec.algorithm:
        text += f", algorithm={spec.algorithm!r}"
    return text


def ranks_of(sealed: pb.Sealed) -> Mapping[int, int]:
    """Ranks by incarnation."""
    return {member.incarnation: rank for rank, member in enumerate(sealed.members)}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
