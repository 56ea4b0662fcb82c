"""On which core a thread runs, and how it gets away from one (Linux).

The kernel likes to run whom a thread wakes on that thread's core. Two ranks that wait for each other all the
time then share a core while another is idle: each of their steps costs two context switches.
"""

from __future__ import annotations

import ctypes
import os
import sys

if sys.platform == "linux":
    _getcpu = ctypes.PyDLL(None).sched_getcpu
    _getcpu.argtypes, _getcpu.restype = (), ctypes.c_int


def current() -> int:
    """The core that this thread is on, at this moment."""
    return int(_getcpu())


def leave(taken: set[int]) -> bool:
    """Moves this thread to a core that is not in `taken`; it may go on to wherever the kernel likes.

    Returns:
        Whether there is such a core among those that it may use.
    """
    allowed = os.sched_getaffinity(0)
    if not allowed - taken:
        return False
    os.sched_setaffinity(0, allowed - taken)
    os.sched_setaffinity(0, allowed)
    return True
