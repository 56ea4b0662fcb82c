"""Device memory that another process of this host opens: CUDA IPC, or what a device of tests has instead.

A handle opens the whole allocation that it names. CuPy's pool cuts allocations into arrays, so the handle of
an array would show a peer its neighbours too. What is shared here is memory of its own, outside of the pool:
arrays are copied into it, and out of it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import numpy as np

from psframework.backend.arrays import Array
from psframework.backend.platforms import platform_named
from psframework.errors import ArgumentError, WireError

HANDLE_BYTES: Final = 64
GRAIN: Final = 2 << 20
"""CUDA shares blocks of 2 MiB, with all that is in them: smaller allocations would show other memory."""


class SharedMemory(Protocol):
    """Memory of a device that two processes see.

    Attributes:
        nbytes: its length.
        handle: what the other process opens it with; empty where it was opened itself.
    """

    nbytes: int
    handle: bytes

    def write(self, offset: int, source: Array) -> None:
        """Copies a contiguous array, of the device or of the host, to `offset`; complete on return."""

    def read(self, offset: int, nbytes: int) -> Array:
        """A copy of some bytes, on the device; complete on return. WireError where they leave the memory."""

    def close(self) -> None:
        """Lets it go."""


class Ipc(Protocol):
    """How a platform shares memory."""

    def address(self, index: int) -> str:
        """The name of device `index` in every process of this host."""

    def allocate(self, index: int, nbytes: int) -> SharedMemory:
        """Memory to share, of at least so many bytes."""

    def open(self, address: str, handle: bytes, nbytes: int) -> SharedMemory:
        """Memory of another process, of which it says that it has so many bytes.

        Raises:
            Exception: of the driver's or ours: no such device or memory here, too little of it, or our own.
        """


def open_shared(kind: str, address: str, handle: bytes, nbytes: int) -> SharedMemory:
    """Memory that another process shares on a device of a kind.

    Raises:
        ArgumentError: no device of the kind is here, or it shares nothing.
        Exception: as `Ipc.open`.
    """
    platform = platform_named(kind)
    ipc = platform.ipc() if platform is not None and platform.count() else None
    if ipc is None:
        raise ArgumentError(f"no device {kind[:40]!r} here that shares memory")
    return ipc.open(address, handle, nbytes)


def check_range(memory: SharedMemory, offset: int, nbytes: int) -> None:
    """WireError unless [offset, offset + nbytes) is in the memory."""
    if offset < 0 or nbytes < 0 or offset > memory.nbytes - nbytes:
        raise WireError(f"{nbytes} bytes at offset {offset} of device memory of {memory.nbytes} bytes")


class CudaMemory:
    """Memory of a GPU: `SharedMemory` in terms of CuPy.

    Args:
        cp: CuPy.
        memory: CuPy's `Memory` or `UnownedMemory`.
        index: of the GPU.
        nbytes: its length.
        handle: what CUDA names it by, if it is ours.
    """

    def __init__(self, cp: Any, memory: Any, index: int, nbytes: int, handle: bytes = b"") -> None:
        self._cp, self._memory, self._index = cp, memory, index
        self.nbytes, self.handle = nbytes, handle

    def write(self, offset: int, source: Any) -> None:
        """As `SharedMemory.write`, after what the current stream holds."""
        check_range(self, offset, source.nbytes)
        cp = self._cp
        with cp.cuda.Device(self._index):
            target, stream = cp.cuda.MemoryPointer(self._memory, offset), cp.cuda.get_current_stream()
            if isinstance(source, np.ndarray):
                target.copy_from_host_async(source.ctypes.data, source.nbytes, stream)
            else:
                target.copy_from_device_async(source.data, source.nbytes, stream)
            stream.synchronize()  # the other process knows nothing of our streams

    def read(self, offset: int, nbytes: int) -> Array:
        """As `SharedMemory.read`."""
        check_range(self, offset, nbytes)
        cp = self._cp
        with cp.cuda.Device(self._index):
            out, stream = cp.empty((nbytes,), np.dtype(np.uint8)), cp.cuda.get_current_stream()
            out.data.copy_from_device_async(cp.cuda.MemoryPointer(self._memory, offset), nbytes, stream)
            stream.synchronize()  # else the other process would write into it again too early
        return cast(Array, out)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at exit CUDA may have ended before
            self.close()

    def close(self) -> None:
        """As `SharedMemory.close`."""
        memory, self._memory, self.nbytes = self._memory, None, 0
        if memory is not None and not self.handle:
            with self._cp.cuda.Device(self._index):
                self._cp.cuda.runtime.ipcCloseMemHandle(memory.ptr)


class CudaIpc:
    """`Ipc` of CUDA.

    Args:
        cp: CuPy.
        extent: where the allocation that an address lies in begins, and its length.
    """

    def __init__(self, cp: Any, extent: Callable[[int], tuple[int, int]] | None = None) -> None:
        self._cp, self._extent = cp, extent or _extent

    def address(self, index: int) -> str:
        """The PCI address: indices depend on CUDA_VISIBLE_DEVICES."""
        return str(self._cp.cuda.runtime.deviceGetPCIBusId(index))

    def allocate(self, index: int, nbytes: int) -> SharedMemory:
        """As `Ipc.allocate`: by cudaMalloc, as memory of an asynchronous pool has no handle."""
        nbytes = -(-nbytes // GRAIN) * GRAIN
        with self._cp.cuda.Device(index):
            memory = self._cp.cuda.Memory(nbytes)
            handle = self._cp.cuda.runtime.ipcGetMemHandle(memory.ptr)
        return CudaMemory(self._cp, memory, index, nbytes, handle)

    def open(self, address: str, handle: bytes, nbytes: int) -> SharedMemory:
        """As `Ipc.open`. CUDA refuses handles of this process, and bytes that are no handle."""
        if len(handle) != HANDLE_BYTES:
            raise WireError(f"a handle of {len(handle)} bytes; CUDA's have {HANDLE_BYTES}")
        runtime = self._cp.cuda.runtime
        index = runtime.deviceGetByPCIBusId(address)
        with self._cp.cuda.Device(index):
            pointer = runtime.ipcOpenMemHandle(handle)
            try:
                # CUDA would take what lies behind it for a part of it, and that may be ours.
                base, size = self._extent(pointer)
                if base + size - pointer < nbytes:
                    raise WireError(f"device memory of {size} bytes, said to have {nbytes}")
                memory = self._cp.cuda.UnownedMemory(pointer, nbytes, self, index)
            except BaseException:
                runtime.ipcCloseMemHandle(pointer)
                raise
        return CudaMemory(self._cp, memory, index, nbytes)


def _extent(pointer: int) -> tuple[int, int]:
    """Base and length of the allocation around a device pointer: CuPy has no function for it."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    ask = ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2
    status = ask(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    if status:
        raise WireError(f"CUDA does not know how long shared memory is: error {status}")
    return base.value, size.value
