"""Threads for copies and page faults, which an event loop must not wait for.

Not the loop's own (`asyncio.to_thread`): users fill those with work that lasts, or that waits for a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_THREADS: Final = ThreadPoolExecutor(thread_name_prefix="psf-copy")


def in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Has `work(*args, **kwargs)` called in one of them; it must be short, and wait for nobody.

    Returns:
        What it returns, or raises. Cancelled, work that has begun goes on to its end all the same.
    """
    return asyncio.wrap_future(_THREADS.submit(work, *args, **kwargs))
