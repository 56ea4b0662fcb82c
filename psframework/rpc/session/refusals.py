"""Sockets of strangers in the audit log: who may cause as many as it likes must not fill a disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from psframework.errors import PermissionDenied
from psframework.rpc.security import audit
from psframework.rpc.status import text_of

MOST: Final = 10
PERIOD_SECONDS: Final = 60.0


class Refusals:
    """Writes refused sockets to the audit log: `MOST` lines a period, and then how many it left out.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._written = 0
        self._more: tuple[int, str, Exception] | None = None

    def record(self, address: str, error: Exception) -> None:
        """A socket from HOST:PORT was refused, and why."""
        if self._clock() - self._began >= PERIOD_SECONDS:
            self.flush()
            self._began, self._written = self._clock(), 0
        if self._written < MOST:
            self._written += 1
            audit.refused("a socket", error, name=address)
        else:
            count = self._more[0] if self._more else 0
            # Its text alone: the error refers to all that was at work when it was raised.
            self._more = count + 1, address, PermissionDenied(text_of(error))

    def flush(self) -> None:
        """Writes how many were left out, with the last of them."""
        if self._more is not None:
            (count, address, error), self._more = self._more, None
            audit.refused(f"sockets: {count} more", error, name=address)
