"""Which ranges of a segment, of the host's memory or a device's, payloads lie in."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

ALIGN: Final = 64


class Memory(Protocol):
    """A segment, as far as it matters here."""

    nbytes: int


M = TypeVar("M", bound=Memory)


class Region(Generic[M]):
    """A range of one segment that a payload lies in."""

    __slots__ = ("arena", "begin", "end")

    def __init__(self, arena: Arena[M], begin: int, end: int) -> None:
        self.arena = arena
        self.begin = begin
        self.end = end

    def free(self) -> None:
        """Gives the range back."""
        self.arena.give_back(self.begin, self.end)


class Arena(Generic[M]):
    """First-fit allocation in one segment.

    Args:
        segment: the memory.
        number: its id in the session.
    """

    def __init__(self, segment: M, number: int) -> None:
        self.segment = segment
        self.number = number
        self._free = [(0, segment.nbytes)]

    def take(self, nbytes: int) -> Region[M] | None:
        """A free range of `nbytes` bytes; None if there is none."""
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= nbytes:
                self._free[index : index + 1] = [(begin + nbytes, end)] if end - begin > nbytes else []
                return Region(self, begin, begin + nbytes)
        return None

    def give_back(self, begin: int, end: int) -> None:
        """Frees a range, and joins it with free neighbours."""
        insort(self._free, (begin, end))
        merged: list[tuple[int, int]] = []
        for low, high in self._free:
            if merged and merged[-1][1] == low:
                merged[-1] = (merged[-1][0], high)
            else:
                merged.append((low, high))
        self._free = merged

    @property
    def is_idle(self) -> bool:
        """Whether nothing is allocated."""
        return self._free == [(0, self.segment.nbytes)]


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offset of each part, and the bytes of all."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGN) * ALIGN
    return offsets, max(end, ALIGN)
