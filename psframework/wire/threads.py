"""Threads for copies, page faults and sums, which an event loop must not wait for.

Not the loop's own (`asyncio.to_thread`): users fill those with work that lasts, or that waits for a call.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_THREADS: Final = ThreadPoolExecutor(thread_name_prefix="psf-copy")


def in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Calls `work(*args, **kwargs)` in one of them, in this context; it must be short, and wait for nobody.

    Returns:
        What it returns, or raises. Cancelled, work that has begun goes on to its end all the same.
    """
    run = partial(contextvars.copy_context().run, work, *args, **kwargs)
    return asyncio.wrap_future(_THREADS.submit(run))
