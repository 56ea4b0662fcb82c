"""Times of ranks on the driver's clock. No I/O but for the name of this kernel."""

from __future__ import annotations

import functools
import math
from pathlib import Path


class Clocks:
    """How far the clocks of services are behind this process's.

    Processes under one kernel have one clock. Of others an answer that took no time on its way would tell it
    exactly; the fastest answer so far tells it best.

    Args:
        here: the kernel of this process.
    """

    def __init__(self, here: str) -> None:
        self._here = here
        self._behind: dict[str, float] = {}

    def note(self, service: str, kernel: str, clock: float, received: float) -> None:
        """An answer has come.

        Args:
            service: whose.
            kernel: of the service.
            clock: the service's, when it answered, in seconds.
            received: when it came, by this process's clock.
        """
        same = bool(kernel) and kernel == self._here
        before = self._behind.get(service, math.inf)
        self._behind[service] = 0.0 if same else min(before, received - clock)

    def here(self, service: str, clock: float) -> float:
        """A time of a service on this process's clock."""
        return clock + self._behind.get(service, 0.0)


@functools.cache
def kernel() -> str:
    """The same for all processes under one kernel, whose `time.perf_counter` is one clock; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
