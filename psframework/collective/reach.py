"""Which slots a rank fills: a few, that stay in its cache, or many, so that each has left all caches. No I/O.

Writing to memory that another core has just read takes its copy away. Cores that share a cache do that at the
speed of a copy, and then few slots are best. Between cores that share none, as the chiplets of one processor,
it costs ten times as much as to write memory that nobody has in his cache; then many slots are. A program in
a virtual machine can't ask which it is, and it changes: so the copies are timed.
"""

from __future__ import annotations

from typing import Final

SLOW: Final = 6e9
"""Bytes a second: copies that are never as fast as this take memory away from another core."""

AGAIN: Final = 32  # operations after which the few slots get another chance
_LEAST: Final = 64 << 10  # bytes of a copy that says something


class Reach:
    """The choice of one rank.

    Attributes:
        far: whether the next operation uses the many slots.
    """

    def __init__(self) -> None:
        self.far = False
        self._best = 0.0
        self._left = 0

    def note(self, nbytes: int, seconds: float) -> None:
        """A slot was filled in that time. The best one counts: others were interrupted."""
        if nbytes >= _LEAST:
            self._best = max(self._best, nbytes / max(seconds, 1e-9))

    def settle(self) -> None:
        """An operation has ended: chooses for the next one."""
        best, self._best = self._best, 0.0
        if not best:
            return
        if self.far:
            self._left -= 1
            self.far = self._left > 0
        elif best < SLOW:
            self.far, self._left = True, AGAIN
