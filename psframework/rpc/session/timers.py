"""Alarms of many calls on one timer of the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from psframework.rpc.deadline import Deadline, TimerWheel, boottime


class Alarms:
    """Tells when the deadlines of numbered calls have passed.

    Args:
        on_expired: called on the loop with the number of each call whose time is up.
    """

    __slots__ = ("_at", "_on_expired", "_timer", "_wheel")

    def __init__(self, on_expired: Callable[[int], None]) -> None:
        self._on_expired = on_expired
        self._wheel = TimerWheel()
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def add(self, call: int, deadline: Deadline) -> int:
        """Sets an alarm; returns what `discard` needs (0 if there is no deadline)."""
        if deadline is Deadline.NEVER:
            return 0
        tick = self._wheel.add(call, deadline.at)
        if deadline.at < self._at:
            self._arm()
        return tick

    def discard(self, call: int, tick: int) -> None:
        """The call has ended."""
        if tick:
            self._wheel.discard(call, tick)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _arm(self) -> None:
        self.close()
        at = self._wheel.next_at()
        if at is not None:
            self._at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - boottime()), self._expire)

    def _expire(self) -> None:
        for call in self._wheel.expired(boottime()):
            self._on_expired(call)
        self._arm()
