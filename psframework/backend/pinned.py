"""Pinned staging: host memory that a GPU reads and writes by itself, in a few buffers that go round.

A copy from ordinary memory makes the driver stage it piece by piece, and blocks. Two pinned buffers let the
processor fill one while the device empties the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from psframework.backend.arrays import Array
from psframework.backend.streams import Event

STAGE = 8 << 20
"""Bytes of a staging buffer: long enough that starting a copy costs nothing, short enough to overlap."""


class Staging:
    """A pool of pinned buffers. A buffer is taken again only when the device has passed its last event.

    Args:
        allocate: pinned memory of that many bytes, as uint8.
        size: bytes of a buffer.
        kept: buffers that stay with the pool; more are made while all are in use, and let go afterwards.
    """

    def __init__(self, allocate: Callable[[int], Array], size: int = STAGE, kept: int = 4) -> None:
        self.size = size
        self._allocate, self._kept = allocate, kept
        self._lock = threading.Lock()
        self._free: list[tuple[Array, Event | None]] = []

    def take(self) -> Array:
        """A buffer that nothing uses; waits for the device only if it would have to make one too many."""
        with self._lock:
            for place, (buffer, event) in enumerate(self._free):
                if event is None or event.done:
                    del self._free[place]
                    return buffer
            oldest = self._free.pop(0) if len(self._free) >= self._kept else None
        if oldest is None:
            return self._allocate(self.size)
        buffer, event = oldest
        if event is not None:
            event.synchronize()
        return buffer

    def give_back(self, buffer: Array, event: Event | None = None) -> None:
        """Return a buffer, which the device still uses until `event`."""
        with self._lock:
            if len(self._free) < self._kept:
                self._free.append((buffer, event))
                return
        if event is not None:
            event.synchronize()  # its memory must outlive the copy


def pieces(array: Array, size: int) -> Iterator[Array]:
    """A contiguous array as pieces of at most `size` bytes, each a view of uint8."""
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, size):
        yield flat[start : start + size]
