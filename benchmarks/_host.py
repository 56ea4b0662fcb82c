"""What processes of all sides are alike in: their allocator, and the cores that they run on."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Set

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
PINNED = os.environ.get("PSF_BENCH_PIN", "1") != "0"


def set_allocator() -> None:
    """DESIGN D12's allocator, for every side alike: big blocks stay in the heap (glibc only)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def pin(core: int) -> None:
    """Keeps this process on one core, if there are several and PSF_BENCH_PIN is not 0."""
    if PINNED:
        os.sched_setaffinity(0, _one(core))


def pin_threads(core: int, pid: int | str = "self") -> None:
    """The same for a process that has threads already; each is pinned, and those that they start."""
    if PINNED:
        spread_threads(_one(core), pid)


def spread_threads(cores: Set[int], pid: int | str = "self") -> None:
    """Lets all threads of a process run on these cores, and no others."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _one(core: int) -> set[int]:
    cores = sorted(os.sched_getaffinity(0))
    return {cores[core % len(cores)]}
