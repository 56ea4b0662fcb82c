"""Plain host memory: buffers that are reused once nobody looks at them, and copies that free the GIL."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What may be sent: C-contiguous bytes. Arrays pass through `wire.spec.as_bytes` first."""

_RELEASE_GIL_FROM = 64 * 1024


def empty(nbytes: int) -> memoryview:
    """A new writable buffer of `nbytes` bytes, not cleared; aligned for every dtype."""
    return np.empty(nbytes, np.uint8).data


def copy_into(target: memoryview, source: Buffer) -> None:
    """Copies `source` to `target` (same length in bytes); large copies let other Python threads run."""
    if len(target) < _RELEASE_GIL_FROM:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class BufferPool:
    """Buffers that return by themselves when the last view of them dies.

    The kernel zeroes and maps every fresh page, which costs more than the copy into it, so receive
    buffers are worth keeping. A buffer handed out by `take` is reused only after the memoryview, and
    every array or memoryview made from it, is gone: nothing has to be given back by hand.

    Args:
        keep_bytes: how much unused memory the pool may hold.
        smallest: requests below this many bytes are ordinary allocations.
    """

    def __init__(self, keep_bytes: int = 256 << 20, smallest: int = 64 * 1024) -> None:
        self._keep_bytes = keep_bytes
        self._smallest = smallest
        self._idle: dict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._idle_bytes = 0
        # Re-entrant: the collector may run a give-back while this thread holds the lock.
        self._lock = threading.RLock()
        self._lent: dict[int, weakref.ref[npt.NDArray[np.uint8]]] = {}

    @property
    def idle_bytes(self) -> int:
        """Bytes held by the pool and used by nobody."""
        return self._idle_bytes

    def take(self, nbytes: int) -> memoryview:
        """A writable buffer of exactly `nbytes` bytes, not cleared."""
        if nbytes < self._smallest:
            return empty(nbytes)
        size = _rounded(nbytes)
        with self._lock:
            shelf = self._idle.get(size)
            base = shelf.pop() if shelf else None
            if base is not None:
                self._idle_bytes -= size
        if base is None:
            base = np.empty(size, np.uint8)
        return self._lend(base, nbytes)

    def _lend(self, base: npt.NDArray[np.uint8], nbytes: int) -> memoryview:
        # A memoryview keeps `handle` alive, and so does all that is made from the memoryview.
        handle = base[:nbytes]
        key = id(base)

        def give_back(_: object) -> None:
            self._lent.pop(key, None)
            self._shelve(base)

        self._lent[key] = weakref.ref(handle, give_back)
        return handle.data

    def _shelve(self, base: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            if self._idle_bytes + base.nbytes <= self._keep_bytes:
                self._idle[base.nbytes].append(base)
                self._idle_bytes += base.nbytes

    def clear(self) -> None:
        """Frees what is idle; lent buffers still come back later."""
        with self._lock:
            self._idle.clear()
            self._idle_bytes = 0


def _rounded(nbytes: int) -> int:
    """Size class: an eighth of a power of two at a time, so that at most 1/8 is wasted."""
    step = max(4096, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can still be allocated without swapping or the OOM killer: the machine's or the container's.

    Where the system doesn't say (no Linux), a number larger than any memory. `root` is for tests.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text()
        available = int(meminfo.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return sys.maxsize
    return max(0, min([available, *_cgroup_room(root)]))


def _cgroup_room(root: Path) -> list[int]:
    """What the memory control groups of this process, and their parents, leave (versions 1 and 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    room = []
    for _, controllers, name in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers == "":
            top, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif controllers == "memory":
            top = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = top / name.strip("/")
        room += [
            left for group in (inner, *inner.parents) if (left := _group_room(group, *files)) is not None
        ]
    return room


def _group_room(group: Path, limit_file: str, usage_file: str, cache_key: str) -> int | None:
    try:
        limit, used = int((group / limit_file).read_text()), int((group / usage_file).read_text())
        statistics = (group / "memory.stat").read_text().split()
        cache = int(statistics[statistics.index(cache_key) + 1])
    except (OSError, ValueError):  # no such group seen from here, or no limit ("max")
        return None
    return limit - used + cache
