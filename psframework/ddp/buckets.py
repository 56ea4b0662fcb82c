"""Which gradients are reduced together, and where in memory each lies. No I/O.

All gradients of one kind (dtype and device) lie in one array, the *arena*; a bucket is a piece of it. Another
order of the parameters moves borders, never the length of an arena, so buckets are rebuilt in the memory that
they have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

FIRST: Final = 1 << 20
"""Bytes at which the first bucket is closed: a small one, so that communication begins early."""

ALIGN: Final = 64
"""Each gradient begins at a multiple of so many bytes: a cache line, and what vector instructions like."""


class Piece(NamedTuple):
    """The gradient of one parameter.

    Attributes:
        size: elements.
        itemsize: bytes of one.
        kind: what all gradients of a bucket have in common: dtype and device.
    """

    size: int
    itemsize: int
    kind: Hashable

    @property
    def room(self) -> int:
        """Elements that it takes up, with those up to the next border."""
        each = ALIGN // self.itemsize
        return -(-self.size // each) * each


@dataclass(frozen=True, slots=True)
class Span:
    """A bucket, as a piece of the arena of its kind.

    Attributes:
        kind: of its gradients.
        start: its first element in the arena.
        stop: behind its last element.
        members: which pieces are in it, by number.
        starts: the first element of each, counted from `start`.
    """

    kind: Hashable
    start: int
    stop: int
    members: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(slots=True)
class _Open:
    """A bucket that still takes pieces."""

    last: int = 0  # the place in the order of the newest piece
    nbytes: int = 0
    members: list[int] = field(default_factory=list)


def plan(pieces: Sequence[Piece], order: Iterable[int], cap: int, first: int = FIRST) -> list[Span]:
    """Fills buckets with pieces in an order; the first ones will be reduced first.

    Args:
        pieces: by number.
        order: the numbers of all pieces, in the order in which gradients become ready.
        cap: a bucket that has so many bytes takes no more; 0 gives each piece a bucket.
        first: the same for the first bucket.

    Returns:
        The buckets, in the order in which the last gradient of each becomes ready.
    """
    closed: list[_Open] = []
    opened: dict[Hashable, _Open] = {}
    for place, number in enumerate(order):
        piece = pieces[number]
        bucket = opened.setdefault(piece.kind, _Open())
        bucket.members.append(number)
        bucket.nbytes += piece.size * piece.itemsize
        bucket.last = place
        if bucket.nbytes >= (cap if closed else min(first, cap)):
            closed.append(opened.pop(piece.kind))
    ends: dict[Hashable, int] = {}
    buckets = sorted([*closed, *opened.values()], key=lambda bucket: bucket.last)
    return [_span(pieces, bucket.members, ends) for bucket in buckets]


def _span(pieces: Sequence[Piece], members: Sequence[int], ends: dict[Hashable, int]) -> Span:
    kind = pieces[members[0]].kind
    start, length, starts = ends.get(kind, 0), 0, []
    for number in members:
        starts.append(length)
        length += pieces[number].room
    ends[kind] = start + length
    return Span(kind, start, start + length, tuple(members), tuple(starts))


def lengths(pieces: Iterable[Piece]) -> dict[Hashable, int]:
    """Elements of the arena of each kind, in whatever order the pieces are."""
    found: dict[Hashable, int] = {}
    for piece in pieces:
        found[piece.kind] = found.get(piece.kind, 0) + piece.room
    return found
