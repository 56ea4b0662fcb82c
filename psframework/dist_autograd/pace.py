"""Where work runs: short work at once, the rest in the compute thread. Earlier runs show which is which.

To the compute thread and back costs more than a small layer's backward, and a training loop does the same
thing in each step. So work runs in the thread until it was short a few times in a row, and again once it was
not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, ParamSpec, TypeVar

from psframework.rpc.compute import compute

P = ParamSpec("P")
R = TypeVar("R")

SHORT_SECONDS: Final = 300e-6  # of this thread's own time
LONGEST_SECONDS: Final = 2e-3  # with waiting
SURE: Final = 3
REMEMBERED: Final = 1024


class Pace:
    """What is known of the work of one process."""

    def __init__(self) -> None:
        self._short: OrderedDict[Hashable, int] = OrderedDict()  # how often in a row, by kind of work

    async def run(self, kind: Hashable, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `work(*args, **kwargs)` and returns what it returns.

        Args:
            kind: work of one kind takes about the same time.
            work: an ordinary function.
        """
        if self._short.get(kind, 0) >= SURE:
            return self._measured(kind, work, *args, **kwargs)
        return await compute(lambda: self._measured(kind, work, *args, **kwargs))

    def _measured(self, kind: Hashable, work: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        own, wall = time.thread_time(), time.perf_counter()
        short = False
        try:
            result = work(*args, **kwargs)
            own, wall = time.thread_time() - own, time.perf_counter() - wall
            short = own < SHORT_SECONDS and wall < LONGEST_SECONDS
        finally:
            self._note(kind, short=short)
        return result

    def _note(self, kind: Hashable, *, short: bool) -> None:
        known = self._short
        known[kind] = known.get(kind, 0) + 1 if short else 0
        known.move_to_end(kind)
        if len(known) > REMEMBERED:
            known.popitem(last=False)
