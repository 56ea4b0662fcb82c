"""The control lines of a group's segment: who has arrived where, about to do what, and whether it goes on.

Each rank has one line, which it alone writes; there are no locks. A rank *arrives* at a step by writing the
step's number into its line, after everything that the others may read once they see it: the descriptor of its
next operation, its data. When all have arrived, all read. Descriptors lie in two slots by the parity of the
step: the other slot may still be read by a rank that is one step behind, and none is further behind.
"""

from __future__ import annotations

from typing import Final

from psframework.collective import cores
from psframework.collective.descriptor import SLOT_BYTES
from psframework.collective.futex import Futex
from psframework.wire.shm import Segment

LINE_BYTES: Final = 4096
"""One line: a page, so that no two ranks write the same cache line."""

_MASK: Final = 0xFFFFFFFF
_HALF: Final = 1 << 31
# Offsets in a line, each in a cache line of its own: words of 32 bits, then of 64, then texts.
_ARRIVAL, _CORE, _ABORT = 0, 4, 64
_COMPLETED, _KEYS, _FAR = 128, 136, 152
_DESCRIPTORS: Final = 1024
_NOTE: Final = _DESCRIPTORS + 2 * SLOT_BYTES
MAX_NOTE: Final = LINE_BYTES - _NOTE - 4
"""Longest text that tells why a group was aborted."""


class Board:
    """The lines of all ranks, as one of them sees them.

    Args:
        segment: where they are: from its start, one after the other.
        rank: whose line this process writes.
        size: number of ranks.
    """

    def __init__(self, segment: Segment, rank: int, size: int) -> None:
        lines = segment.array(0, (size * LINE_BYTES,), "uint8")
        self._lines = lines  # keeps the mapping while the futexes have its address
        self._bytes = memoryview(lines.data)
        self._words = self._bytes.cast("I")
        self._longs = self._bytes.cast("Q")
        self._rank, self._size = rank, size
        self._start = rank * LINE_BYTES
        self._futexes = [Futex(lines.ctypes.data + each * LINE_BYTES + _ARRIVAL) for each in range(size)]
        self._arrivals = [(each, (each * LINE_BYTES + _ARRIVAL) // 4) for each in range(size) if each != rank]

    def announce(self, step: int, descriptor: bytes, key: int, far: bool) -> None:
        """Says what this rank is about to do, before it arrives at `step`.

        Args:
            step: that of the operation's first barrier.
            descriptor: of the operation.
            key: of the place of its array, if it is resident; else 0.
            far: which of its slots it uses.
        """
        start = self._start + _DESCRIPTORS + (step & 1) * SLOT_BYTES
        self._bytes[start : start + len(descriptor)] = descriptor
        self._longs[(self._start + _KEYS) // 8 + (step & 1)] = key
        self._words[(self._start + _FAR) // 4 + (step & 1)] = far

    def announced(self, step: int, rank: int) -> bytes:
        """A copy of what a rank announced for `step`, with whatever follows it in its slot."""
        start = rank * LINE_BYTES + _DESCRIPTORS + (step & 1) * SLOT_BYTES
        return bytes(self._bytes[start : start + SLOT_BYTES])

    def key(self, step: int, rank: int) -> int:
        """The key that a rank announced for `step`."""
        return self._longs[(rank * LINE_BYTES + _KEYS) // 8 + (step & 1)]

    def far(self, step: int, rank: int) -> bool:
        """Which slots a rank announced for `step`."""
        return self._words[(rank * LINE_BYTES + _FAR) // 4 + (step & 1)] != 0

    def arrive(self, step: int) -> None:
        """Tells all that this rank has arrived, and wakes those who wait for it."""
        self._words[(self._start + _CORE) // 4] = cores.current()
        self._words[(self._start + _ARRIVAL) // 4] = step & _MASK
        self._futexes[self._rank].wake()

    def arrived(self, step: int) -> bool:
        """Whether all others have arrived at `step`, or are beyond it."""
        words = self._words
        for _, word in self._arrivals:  # noqa: SIM110 - half the time of all(), and it is called while spinning
            if (words[word] - step) & _HALF:
                return False
        return True

    def missing(self, step: int) -> list[int]:
        """The ranks that have not arrived."""
        return [rank for rank, word in self._arrivals if (self._words[word] - step) & _HALF]

    def cores(self) -> list[int]:
        """On which core each rank's thread was when it arrived last, by rank."""
        return [self._words[(rank * LINE_BYTES + _CORE) // 4] for rank in range(self._size)]

    def sleep(self, step: int, seconds: float) -> None:
        """Waits until a missing rank arrives, somebody aborts, or `seconds` have passed: look again then."""
        for rank, word in self._arrivals:
            seen = self._words[word]
            if (seen - step) & _HALF:
                self._futexes[rank].wait(seen, seconds)
                return

    def complete(self, sequence: int) -> None:
        """Notes the last operation that this rank has completed."""
        self._longs[(self._start + _COMPLETED) // 8] = sequence

    def completed(self, rank: int) -> int:
        """The last operation that a rank has completed; 0 for none."""
        return self._longs[(rank * LINE_BYTES + _COMPLETED) // 8]

    def abort(self, note: bytes) -> None:
        """Tells all that this rank gives the group up, and wakes everybody. Any thread may call it, once."""
        note = note[:MAX_NOTE]
        start = self._start + _NOTE
        self._words[start // 4] = len(note)
        self._bytes[start + 4 : start + 4 + len(note)] = note
        self._words[(self._start + _ABORT) // 4] = 1
        for futex in self._futexes:
            futex.wake()

    def aborted(self) -> tuple[int, bytes] | None:
        """A rank that has given the group up, with its note; None if all go on."""
        for rank in range(self._size):
            line = rank * LINE_BYTES
            if self._words[(line + _ABORT) // 4]:
                start = line + _NOTE
                length = min(self._words[start // 4], MAX_NOTE)
                return rank, bytes(self._bytes[start + 4 : start + 4 + length])
        return None
