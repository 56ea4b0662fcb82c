"""What each rank puts into its staging slots and takes out of the others', chunk by chunk. No I/O.

Every operation over shared memory is a number of *rounds*. In round k a rank fills its slot, waits until all
have filled theirs, and drains: takes what it needs out of them. A rank writes only its own slots, and it
fills the next one while it waits.

Slots are used in turn, `TURNS` of them, so that one barrier a round is enough. The next slot is filled before
the barrier of round k, so after that of k - 1: all had drained round k - 2 by then, and with it (see `Share`)
what was filled in round k - 3, which is the slot's last content if there are four.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from psframework.collective.work import Flat

TURNS: Final = 4
"""Slots that a rank uses in turn at least."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Staging:
    """The slots of all ranks, and which of them this one is.

    Args:
        rank, size: of the group.
        slots: `slots[rank]`, all of equal length: the first `TURNS` are used in turn, or else the others.
        step: number of the operation's first barrier in the life of the group.
        far: by rank, whether it uses the others (see reach.py); set for others once they have said so.
    """

    rank: int
    size: int
    slots: list[list[Bytes]]
    step: int
    far: list[bool]

    @property
    def nbytes(self) -> int:
        """Length of a slot."""
        return len(self.slots[0][0])

    def bytes(self, rank: int, turn: int, start: int, stop: int) -> Bytes:
        """Bytes of the slot that `rank` fills in round `turn`."""
        slots, step = self.slots[rank], self.step + turn
        # Each kind in its own turn, so that no change of mind brings a slot back before it was read.
        number = TURNS + step % (len(slots) - TURNS) if self.far[rank] else step % TURNS
        return slots[number][start:stop]

    def flat(self, rank: int, turn: int, cut: slice, dtype: np.dtype[Any]) -> Flat:
        """The same, as elements."""
        size = dtype.itemsize
        return self.bytes(rank, turn, cut.start * size, cut.stop * size).view(dtype)


class Exchange(Protocol):
    """One operation of one rank."""

    @property
    def rounds(self) -> int:
        """How many, at least 1; the same on all ranks."""
        ...

    def fill(self, turn: int) -> int:
        """Writes this rank's slot; returns how many bytes."""
        ...

    def drain(self, turn: int) -> None:
        """Reads the slots of all, which have been filled."""
        ...


def whole(array: Flat | None) -> Bytes:
    """The bytes of an array; none of None."""
    return np.empty(0, np.uint8) if array is None else array.view(np.uint8)


class Cut:
    """`total` units cut into chunks of at most `most`."""

    def __init__(self, total: int, most: int) -> None:
        self.total, self.most = total, max(1, most)
        self.rounds = max(1, -(-total // self.most))

    def __call__(self, turn: int) -> slice:
        start = turn * self.most
        return slice(start, min(start + self.most, self.total))


def even(count: int) -> int:
    """Rounded down, so that what lies behind starts at a cache line."""
    return count - count % 64 if count > 64 else count
