"""Shared segments: memory that two processes map, which neither can pull from under the other.

A segment is an anonymous file (`memfd`): it has no name, so no crash leaks it. Its pages are reserved
when it is made, since memory that is only promised kills the process at the first touch when there is
none left. It is sealed against shrinking and growing, so a peer cannot truncate it while we read.
A peer may still change the contents at any moment: copy a header before parsing it (`read`).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from psframework.errors import ArgumentError, ConfigurationError, ResourceExhausted, WireError
from psframework.wire.memory import available_memory

if sys.platform == "linux":
    import fcntl

    _SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

MAX_SEGMENT: Final = 64 << 30
"""Default bound of a segment that a peer hands over: 64 GiB (its pages are the peer's already)."""

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; not yet a name in Python's mmap module
_TOUCH_BYTES: Final = 4 << 20  # madvise keeps the GIL: a slice of this size takes about 2 ms
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)


def available() -> bool:
    """Whether this machine has sealed anonymous files and descriptor passing (Linux)."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class Segment:
    """A sealed shared mapping. Make one with `create`, or `from_fd` for a descriptor of a peer.

    Views and arrays of a segment stay valid after `close`: the mapping lives until the last of them dies.
    """

    def __init__(self, fd: int, mapping: mmap.mmap) -> None:
        self._fd: int | None = fd
        self._mapping: mmap.mmap | None = mapping
        self._buffer: memoryview | None = memoryview(mapping)
        self.nbytes = len(mapping)

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """A new segment of `nbytes` bytes, zeroed, every page reserved and mapped.

        That costs about 0.6 s for 1 GiB, and as little as a copy from then on: make segments once and
        reuse them, and make large ones in a thread (`wire.threads`).

        Raises:
            ResourceExhausted: there is no memory (or descriptor) for it; take another lane.
            ConfigurationError: this machine has no sealed segments.
        """
        if nbytes < 1:
            raise ArgumentError(f"a segment of {nbytes} bytes")
        if not available():
            raise ConfigurationError("shared segments need Linux; use the lanes inline,striped")
        if nbytes > (room := available_memory()):
            # Reserving more than there is would wake the OOM killer before it failed.
            raise ResourceExhausted(f"no room for a shared segment of {nbytes} bytes: {room} are available")
        try:
            fd = os.memfd_create("psframework", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise _no_room(nbytes, error) from None
        with _closing_on_error(fd):
            try:
                os.posix_fallocate(fd, 0, nbytes)
            except OSError as error:
                raise _no_room(nbytes, error) from None
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            segment = cls(fd, _map(fd, nbytes))
        segment.touch()
        return segment

    @classmethod
    def from_fd(cls, fd: int, *, max_bytes: int = MAX_SEGMENT) -> Segment:
        """Maps a descriptor that a peer sent. Takes the descriptor over: closes it on every error.

        Raises:
            WireError: not a sealed, fully reserved, writable segment of at most `max_bytes`.
            ResourceExhausted: it could not be mapped for want of memory.
        """
        with _closing_on_error(fd):
            return cls(fd, _map(fd, _check(fd, max_bytes)))

    @property
    def fd(self) -> int:
        """The descriptor, for handing the segment over; raises ArgumentError once closed."""
        if self._fd is None:
            raise ArgumentError("the segment is closed")
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._fd is None

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable."""
        if self._buffer is None:
            raise ArgumentError("the segment is closed")
        return self._buffer

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Bytes [offset, offset + nbytes), writable, shared; WireError where they leave the segment."""
        if offset < 0 or nbytes < 0 or offset > self.nbytes - nbytes:
            raise WireError(f"{nbytes} bytes at offset {offset} of a segment of {self.nbytes} bytes")
        return self.buffer[offset : offset + nbytes]

    def read(self, offset: int, nbytes: int) -> bytes:
        """A private copy of some bytes, for parsing: the peer can't change it any more."""
        return bytes(self.view(offset, nbytes))

    def array(self, offset: int, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A shared array at `offset`, of native byte order; WireError where it leaves the segment."""
        kind = np.dtype(dtype)
        if kind.hasobject or kind.itemsize == 0 or min(shape, default=0) < 0:
            raise WireError(f"no array of dtype {kind} and shape {tuple(shape)} fits into a segment")
        nbytes = kind.itemsize
        for axis in shape:
            nbytes *= int(axis)
        view = self.view(offset, nbytes)
        if nbytes == 0:
            return np.empty(tuple(shape), kind)
        return np.frombuffer(view, np.uint8).view(kind).reshape(tuple(shape))

    def touch(self, seconds: float = float("inf")) -> None:
        """Maps the pages now, so that first use costs no page faults; contents stay as they are.

        Only saves time: stops after `seconds`, when the segment is closed, or where the kernel can't.
        """
        end = time.monotonic() + seconds
        for start in range(0, self.nbytes, _TOUCH_BYTES):
            mapping = self._mapping
            if mapping is None or time.monotonic() > end:
                return
            try:
                mapping.madvise(_MADV_POPULATE_WRITE, start, min(_TOUCH_BYTES, self.nbytes - start))
            except (OSError, ValueError):
                return
            time.sleep(0)  # lets another thread have the GIL

    def close(self) -> None:
        """Closes the descriptor and gives up the mapping, which goes when no view is left."""
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        mapping, self._mapping, buffer, self._buffer = self._mapping, None, self._buffer, None
        if buffer is not None:
            with contextlib.suppress(BufferError):
                buffer.release()
        if mapping is not None:
            # With views alive this raises, and the last view then takes the mapping with it.
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.close()


@contextlib.contextmanager
def _closing_on_error(fd: int) -> Any:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def _map(fd: int, nbytes: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except PermissionError:
        raise WireError("the segment can't be mapped for writing: read-only or sealed against it") from None
    except (OSError, OverflowError) as error:
        raise _no_room(nbytes, error) from None
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _check(fd: int, max_bytes: int) -> int:
    """The size of a peer's segment, if it is one that can't harm us."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        status = os.fstat(fd)
    except OSError:
        raise WireError("the descriptor is not a segment: it can't be sealed") from None
    if seals & _SEALS != _SEALS:
        raise WireError("the segment is not sealed: its owner could truncate it and kill us")
    if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= max_bytes:
        raise WireError(f"a segment of {status.st_size} bytes; 1 to {max_bytes} are allowed")
    if status.st_blocks * 512 < status.st_size:
        raise WireError("the segment's pages are not reserved: touching them could kill us")
    return status.st_size


def _no_room(nbytes: int, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno not in _NO_ROOM:
        return ConfigurationError(f"shared memory does not work here: {error}")
    return ResourceExhausted(f"no room for a shared segment of {nbytes} bytes: {error}")
