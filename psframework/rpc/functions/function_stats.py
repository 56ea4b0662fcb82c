"""Figures of the functions that peers call: how often, with what end, how long. Pure; time is an argument."""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

STEPS: Final = 8
"""Buckets of the histogram in each doubling of the time: percentiles are right within 9 %."""

LOWEST: Final = 1e-6
BUCKETS: Final = 40 * STEPS


class End(Enum):
    """How a call ended."""

    RETURNED = "returned"
    RAISED = "raised"
    CANCELLED = "cancelled"


class Histogram:
    """Times on a logarithmic scale from a microsecond to days."""

    __slots__ = ("_buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._buckets = [0] * BUCKETS

    def add(self, seconds: float) -> None:
        """One more time."""
        self.count += 1
        self.total += seconds
        index = int(math.log2(seconds / LOWEST) * STEPS) + 1 if seconds > LOWEST else 0
        self._buckets[min(index, BUCKETS - 1)] += 1

    def percentile(self, share: float) -> float:
        """The time within which `share` of all were; 0 if there were none."""
        left = math.ceil(share * self.count)
        for index, count in enumerate(self._buckets):
            left -= count
            if count and left <= 0:
                return LOWEST * math.exp2(index / STEPS)
        return 0.0


class FunctionStats:
    """Figures of one function.

    Attributes:
        calls: that were begun.
        errors: that raised.
        cancelled: that were given up, by deadline or caller.
        refused: that were not begun.
        running: at this moment, those that wait for a thread included.
        times: of all that have ended.
    """

    __slots__ = ("calls", "cancelled", "errors", "refused", "running", "times")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.cancelled = 0
        self.refused = 0
        self.running = 0
        self.times = Histogram()

    def begin(self) -> None:
        """A call begins."""
        self.calls += 1
        self.running += 1

    def end(self, end: End, seconds: float) -> None:
        """It has ended, after so many seconds."""
        self.running -= 1
        self.times.add(seconds)
        if end is End.RAISED:
            self.errors += 1
        elif end is End.CANCELLED:
            self.cancelled += 1
