"""CUDA IPC for strict devices: their memory is a `memfd`, which another process opens through /proc.

It refuses what CUDA refuses: its own handles, bytes that are none, and more memory than there is.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from psframework.backend import Array, SharedMemory
from psframework.backend.ipc import HANDLE_BYTES, check_range
from psframework.errors import WireError

if TYPE_CHECKING:
    from psframework.testing.strict_device import StrictDevice

_HANDLE: Final = struct.Struct("<8sQQ40x")  # magic, process, descriptor
_MAGIC: Final = b"strict\0\0"
assert _HANDLE.size == HANDLE_BYTES


class StrictMemory:
    """`SharedMemory` of a strict device. Takes the descriptor over, which stays open while others may ask."""

    def __init__(self, device: StrictDevice, fd: int, nbytes: int, handle: bytes = b"") -> None:
        self.nbytes, self.handle = nbytes, handle
        self._device, self._fd = device, fd
        try:
            self._bytes: Any = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        except BaseException:
            os.close(fd)
            raise

    def write(self, offset: int, source: Array) -> None:
        """As `SharedMemory.write`."""
        check_range(self, offset, source.nbytes)
        host = source if isinstance(source, np.ndarray) else self._device.unwrap(source)
        self._bytes[offset : offset + host.nbytes] = host.reshape(-1).view(np.uint8)

    def read(self, offset: int, nbytes: int) -> Array:
        """As `SharedMemory.read`."""
        check_range(self, offset, nbytes)
        return self._device.wrap(self._bytes[offset : offset + nbytes].copy(), ())  # type: ignore[no-any-return]

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """As `SharedMemory.close`."""
        if self._bytes is not None:
            self._bytes, self.nbytes = None, 0
            os.close(self._fd)


class StrictIpc:
    """`Ipc` of a strict device: a device of the same name is the same one in another process."""

    def __init__(self, device: StrictDevice) -> None:
        self._device = device

    def address(self, index: int) -> str:
        """Its name."""
        return self._device.name

    def allocate(self, index: int, nbytes: int) -> SharedMemory:
        """As `Ipc.allocate`."""
        fd = os.memfd_create(self._device.name)
        os.ftruncate(fd, nbytes)
        return StrictMemory(self._device, fd, nbytes, _HANDLE.pack(_MAGIC, os.getpid(), fd))

    def open(self, address: str, handle: bytes, nbytes: int) -> SharedMemory:
        """As `Ipc.open`."""
        if address != self._device.name or len(handle) != HANDLE_BYTES:
            raise WireError(f"no device {address!r} here, or no handle")
        magic, process, descriptor = _HANDLE.unpack(handle)
        if magic != _MAGIC or process == os.getpid():
            raise WireError("no handle, or one of this process")
        fd = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        if os.fstat(fd).st_size < nbytes:
            os.close(fd)
            raise WireError(f"less than the {nbytes} bytes that were promised")
        return StrictMemory(self._device, fd, nbytes)
