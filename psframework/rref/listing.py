"""Who refers to what: what `psf rref list` shows."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from psframework.proto.v1 import rref_pb2 as pb
from psframework.rref.encoding import rref_id, rref_message
from psframework.rref.ids import RRefId
from psframework.rref.owner import Entry
from psframework.rref.table import Table


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that refers to a value.

    Args:
        name: of the member.
        incarnation: which life of it.
        forks: references that it has registered.
        in_flight: references that are on their way to it.
    """

    name: str
    incarnation: int
    forks: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class RRefInfo:
    """One value and who refers to it.

    Args:
        id: its name.
        type: of the value, or of the error instead of it; "" while it is being made.
        ready: whether value or error is there.
        failed: whether it is an error.
        handles: references in the owner's process.
        holders: other processes that refer to it.
        age: seconds since it was asked for.
    """

    id: RRefId
    type: str
    ready: bool
    failed: bool
    handles: int
    holders: tuple[Holder, ...]
    age: float


def listing(table: Table) -> list[RRefInfo]:
    """All values of a process."""
    now = time.monotonic()
    return [_describe(table, entry, now) for entry in table.account.owner.entries]


def _describe(table: Table, entry: Entry, now: float) -> RRefInfo:
    forks = Counter(fork.holder for fork in entry.forks)
    flights = Counter(receiver for receiver, _ in entry.holds)
    holders = tuple(
        Holder(table.names.get(holder, "?"), holder, forks[holder], flights[holder])
        for holder in sorted({*forks, *flights})
    )
    return RRefInfo(
        entry.rref,
        _type_of(entry),
        entry.is_ready,
        entry.error is not None,
        entry.handles,
        holders,
        now - table.born.get(entry.rref, now),
    )


def _type_of(entry: Entry) -> str:
    if not entry.is_ready:
        return ""
    kind = type(entry.value if entry.error is None else entry.error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def to_info(info: RRefInfo) -> pb.RRefInfo:
    """For the wire."""
    return pb.RRefInfo(
        rref=rref_message(info.id),
        type=info.type,
        ready=info.ready,
        failed=info.failed,
        handles=info.handles,
        age_seconds=info.age,
        holders=[
            pb.RRefHolder(name=h.name, incarnation=h.incarnation, forks=h.forks, in_flight=h.in_flight)
            for h in info.holders
        ],
    )


def from_info(info: pb.RRefInfo) -> RRefInfo:
    """The opposite."""
    holders = tuple(Holder(h.name, h.incarnation, h.forks, h.in_flight) for h in info.holders)
    return RRefInfo(
        rref_id(info.rref), info.type, info.ready, info.failed, info.handles, holders, info.age_seconds
    )
