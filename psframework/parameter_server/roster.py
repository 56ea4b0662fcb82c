"""Rosters: who counts in which step. Made and stored by the keeper, told to all shards, numbered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from psframework.errors import Evicted, NotRegistered

VACANT = 0
"""The writer of a slot that waits for its trainer to restart."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One slot over a span of steps.

    Args:
        slot: fixed index of the trainer; gradients are summed in this order.
        writer: number of its registration, unique for ever; VACANT while the slot waits.
        incarnation: of the member behind it.
        name: of that member.
        from_step: first step that it counts in.
        until_step: first step that it no longer counts in (those below are complete everywhere); None: open.
    """

    slot: int
    writer: int
    incarnation: int
    name: str
    from_step: int = 0
    until_step: int | None = None

    def covers(self, step: int) -> bool:
        """Whether it counts in a step."""
        return self.from_step <= step and (self.until_step is None or step < self.until_step)

    @property
    def open(self) -> bool:
        """Whether it goes on."""
        return self.until_step is None


@dataclass(frozen=True, slots=True)
class Seal:
    """The contributors of one step, decided once for all shards."""

    step: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Roster:
    """Who counts, as of one number.

    Args:
        number: rises with each change.
        entries: spans of trainers; those that ended long ago are left out.
        readers: writers that only pull.
        held: no step is closed until enough trainers have come.
        ready: the first values are complete on every shard.
        initializer: the writer whose first values count.
        seals: of the newest steps that were closed by decision.
    """

    number: int = 0
    entries: tuple[Entry, ...] = ()
    readers: frozenset[int] = frozenset()
    held: bool = False
    ready: bool = False
    initializer: int = 0
    seals: tuple[Seal, ...] = field(default=())

    def active(self, step: int) -> Iterator[Entry]:
        """The entries that count in a step, in slot order."""
        return iter(sorted((e for e in self.entries if e.covers(step)), key=lambda e: e.slot))

    def open_entries(self) -> tuple[Entry, ...]:
        """The entries that go on, vacant ones included."""
        return tuple(e for e in self.entries if e.open)

    def writers(self) -> frozenset[int]:
        """Writers that may push or pull."""
        return frozenset(e.writer for e in self.entries if e.open and e.writer != VACANT) | self.readers

    def find(self, writer: int) -> Entry | None:
        """The entry of a writer, also one that has ended."""
        if writer != VACANT:
            for entry in self.entries:
                if entry.writer == writer:
                    return entry
        return None

    def trainer(self, writer: int, table: str) -> Entry:
        """The entry of a writer that may push.

        Raises:
            NotRegistered: it never registered as a trainer, or registered as a reader.
            Evicted: its participation ended.
        """
        entry = self.find(writer)
        if entry is None:
            if writer in self.readers:
                raise NotRegistered(f"writer {writer} of {table!r} is a reader (reader=True): it can't push")
            raise NotRegistered(
                f"writer {writer} is not registered with {table!r}: open the parameter server again"
            )
        if not entry.open:
            raise Evicted(
                f"{entry.name!r} (writer {writer}) counts in {table!r} only below step {entry.until_step}: "
                "it left or was fenced; open the parameter server again"
            )
        return entry
