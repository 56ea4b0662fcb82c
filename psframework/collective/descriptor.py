"""What a rank says of its next operation, so that all compare before data moves. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from psframework.collective.ops import ReduceOp
from psframework.errors import ArgumentError, CollectiveMismatch, WireError

SLOT_BYTES: Final = 1024
"""An encoded descriptor never takes more."""

ANY: Final = -1
"""Root of an operation that has none."""

_HEAD: Final = struct.Struct("<QBBbbiHHI")  # sequence, operation, op, open, axes, root, dtype, note, -
_MAX_NOTE: Final = 400
_MOST: Final = 6  # ranks, and descriptors, that a message lists


class Operation(IntEnum):
    """The operations of a group."""

    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    GATHER = 5
    SCATTER = 6
    REDUCE_SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    SEND = 10
    RECV = 11
    REFUSE = 12  # this rank can't take part: every rank gets an error that carries its note


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One operation, as one rank is about to do it.

    Args:
        sequence: number of the operation in its group, from 1.
        operation: which.
        dtype: name of the dtype of the rank's array, as `backend.dtype_name` gives it; "" without one.
        shape: of the rank's array, as the user passed it.
        op: the reduction; None if it has none.
        root: source or destination; ANY if all are alike.
        open: this rank takes shape and dtype from the root: they are not compared. Of a REFUSE: it passes on
            what others have said, so the note tells who.
        note: why a REFUSE was refused; of a step of a larger operation, what that is, as messages say it.
    """

    sequence: int
    operation: Operation
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: ReduceOp | None = None
    root: int = ANY
    open: bool = False
    note: str = ""

    def __str__(self) -> str:
        what = self.operation.name.lower()
        if self.operation is Operation.REFUSE:
            return f"refused: {self.note}"
        if self.note:
            return self.note
        details = []
        if self.open:
            details.append("no array")
        elif self.dtype:
            details.append(f"{self.dtype} of shape {self.shape}")
        if self.op is not None:
            details.append(self.op.name)
        if self.root != ANY:
            details.append(f"root {self.root}")
        return f"{what}({', '.join(details)})"

    @property
    def _name(self) -> str:
        return (self.note or self.operation.name.lower()).partition("(")[0]

    def encode(self) -> bytes:
        """At most `SLOT_BYTES`; two ranks agree if their bytes are the same (`open` ones aside)."""
        dtype, note = self.dtype.encode(), self.note.encode()[:_MAX_NOTE]
        if len(self.shape) > 64 or len(dtype) > 64:
            raise ArgumentError(f"an array of dtype {self.dtype} with {len(self.shape)} axes can't travel")
        head = _HEAD.pack(
            self.sequence, self.operation, self.op or 0, self.open, len(self.shape), self.root, len(dtype),
            len(note), 0,
        )  # fmt: skip
        return head + struct.pack(f"<{len(self.shape)}q", *self.shape) + dtype + note

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Descriptor:
        """Reads what `encode` wrote; what follows is ignored. WireError if it can't be right."""
        try:
            sequence, operation, op, opened, axes, root, dtype, note, _ = _HEAD.unpack_from(data)
            shape = struct.unpack_from(f"<{axes}q", data, _HEAD.size)
            start = _HEAD.size + 8 * axes
            text = bytes(data[start : start + dtype + note])
            if len(text) != dtype + note:
                raise ValueError("too short")
            return cls(
                sequence, Operation(operation), text[:dtype].decode(), shape,
                ReduceOp(op) if op else None, root, bool(opened), text[dtype:].decode(errors="replace"),
            )  # fmt: skip
        except (struct.error, ValueError) as error:
            raise WireError(f"not a descriptor of a collective: {error}") from None

    def agrees(self, other: Descriptor) -> bool:
        """Whether two ranks are about to do the same."""
        if (self.sequence, self.operation, self.op, self.root) != (
            other.sequence, other.operation, other.op, other.root,
        ):  # fmt: skip
            return False
        if self.operation is Operation.REFUSE:
            return False
        if self.open or other.open:  # of arrays and of objects differ, too
            return self._name == other._name
        return (self.dtype, self.shape, self.note) == (other.dtype, other.shape, other.note)


def check_agreement(group: str, descriptors: Mapping[int, Descriptor], names: Mapping[int, str]) -> None:
    """Compares what ranks are about to do.

    Args:
        group: its name, for the message.
        descriptors: by rank.
        names: of the members, by rank.

    Raises:
        CollectiveMismatch: they differ; names ranks and what each was about to do.
    """
    refused = {rank: each for rank, each in descriptors.items() if each.operation is Operation.REFUSE}
    if refused:
        said = dict.fromkeys(each.note for each in refused.values() if each.open)
        own = [
            f"rank {rank} ({names.get(rank, '?')}): {each.note}"
            for rank, each in refused.items()
            if not each.open
        ]
        if own:
            said[f"group {group!r}: {'; '.join(own)}"] = None
        raise CollectiveMismatch("; ".join(said))
    values = list(descriptors.values())
    closed = {each for each in values if not each.open}
    if len(closed) <= 1 and all(values[0].agrees(each) for each in values):
        return
    ranks: dict[Descriptor, list[int]] = {}
    for rank, each in sorted(descriptors.items()):
        ranks.setdefault(each, []).append(rank)
    parts = [f"{_listed(who, names)}: {each}" for each, who in ranks.items()]
    number = min(each.sequence for each in values)
    raise CollectiveMismatch(f"operation {number} of group {group!r} differs: " + "; ".join(parts[:_MOST]))


def _listed(ranks: list[int], names: Mapping[int, str]) -> str:
    more = " ..." if len(ranks) > _MOST else ""
    listed = ", ".join(f"{rank} ({names.get(rank, '?')})" for rank in ranks[:_MOST])
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}{more}"
