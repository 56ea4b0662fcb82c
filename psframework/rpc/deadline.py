"""Deadlines are values: a point in time that travels as a duration and only ever shrinks.

Only durations cross the wire; each machine counts them on its own CLOCK_BOOTTIME, which is monotonic and goes
on while a laptop sleeps. Every wait of the framework takes a Deadline, so nothing waits for ever by accident.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from functools import total_ordering
from typing import ClassVar, Final

Clock = Callable[[], float]
FOREVER: Final = 1e9  # 31 years; microseconds of much more fit into no message
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds on the clock that deadlines and leases are counted on."""
    return time.clock_gettime(_CLOCK)


@total_ordering
class Deadline:
    """A point in time by which something must have ended; the smaller of two ends first.

    Args:
        at: the time on `clock`, in seconds; infinity for none.
        clock: where "now" comes from; tests inject their own.
    """

    __slots__ = ("_clock", "at")
    NEVER: ClassVar[Deadline]

    def __init__(self, at: float, clock: Clock = boottime) -> None:
        self.at = at
        self._clock = clock

    @classmethod
    def after(cls, seconds: float | None, *, clock: Clock = boottime) -> Deadline:
        """The deadline `seconds` from now; None, or more than anybody waits, means that there is none."""
        if seconds is None or seconds >= FOREVER:
            return cls.NEVER
        return cls(clock() + seconds, clock)

    def remaining(self) -> float:
        """Seconds left, never below 0; infinity without a deadline."""
        return max(0.0, self.at - self._clock()) if self.at != math.inf else math.inf

    def seconds(self) -> float | None:
        """Seconds left as `asyncio.timeout` and gRPC want them: None without a deadline."""
        return None if self.at == math.inf else self.remaining()

    @property
    def expired(self) -> bool:
        """Whether the time has passed."""
        return self.at != math.inf and self._clock() >= self.at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadline) and self.at == other.at

    def __lt__(self, other: Deadline) -> bool:
        return self.at < other.at

    def __hash__(self) -> int:
        return hash(self.at)

    def __repr__(self) -> str:
        return "Deadline.NEVER" if self.at == math.inf else f"Deadline({self.remaining():.3f} s left)"


Deadline.NEVER = Deadline(math.inf)


FEW_TICKS: Final = 64


class TimerWheel:
    """Times at which numbered calls expire: adding and removing are a set operation each.

    Calls nearly always end before their deadline, so the wheel is made for removal: calls are kept in sets,
    one for each tick of `granularity` seconds, and only ticks (not calls) are ordered. A call expires up to
    one tick late, never early.

    Args:
        granularity: length of a tick in seconds.
    """

    def __init__(self, granularity: float = 0.01) -> None:
        self._granularity = granularity
        self._ticks: dict[int, set[int]] = {}
        self._order: list[int] = []
        self._sweep_at = FEW_TICKS

    def __len__(self) -> int:
        return sum(map(len, self._ticks.values()))

    def add(self, key: int, at: float) -> int:
        """Lets `key` expire at the time `at`; returns the tick, which `discard` needs."""
        tick = int(at / self._granularity) + 1
        keys = self._ticks.get(tick)
        if keys is None:
            if len(self._ticks) >= self._sweep_at:
                self._sweep()
            self._ticks[tick] = {key}
            heapq.heappush(self._order, tick)
        else:
            keys.add(key)
        return tick

    def discard(self, key: int, tick: int) -> None:
        """Takes `key` back; nothing happens if it has expired."""
        keys = self._ticks.get(tick)
        if keys is not None:
            keys.discard(key)

    def _sweep(self) -> None:
        """Forgets ticks whose calls have all ended: with distant deadlines they would pile up till then."""
        self._ticks = {tick: keys for tick, keys in self._ticks.items() if keys}
        self._order = sorted(self._ticks)
        self._sweep_at = max(FEW_TICKS, 2 * len(self._ticks))

    def next_at(self) -> float | None:
        """When `expired` should be called next; None if nothing waits."""
        while self._order:
            tick = self._order[0]
            if self._ticks[tick]:
                return tick * self._granularity
            heapq.heappop(self._order)
            del self._ticks[tick]
        return None

    def expired(self, now: float) -> list[int]:
        """Removes and returns the keys whose time has passed."""
        keys: list[int] = []
        while self._order and self._order[0] * self._granularity <= now:
            keys += self._ticks.pop(heapq.heappop(self._order))
        return keys
