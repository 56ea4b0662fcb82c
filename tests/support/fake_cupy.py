"""Enough of CuPy to run `backend/cuda.py` without a GPU: devices, streams without delay, a log of calls."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

HANDLE = b"handle".ljust(64, b"\0")


class Memory:
    """A `Memory`: an allocation of its own."""

    def __init__(self, size: int) -> None:
        self._host = np.zeros(size, np.uint8)
        self.ptr, self.size = self._host.ctypes.data, size


class Pointer:
    """A `MemoryPointer`: device memory is host memory here."""

    def __init__(self, module: FakeCupy, address: int) -> None:
        self._module, self.address = module, address

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self._module, self.address + offset)

    def copy_from_host_async(self, source: int, size: int, stream: Any) -> None:
        self._module.log.append(("host to device", size))
        ctypes.memmove(self.address, source, size)

    def copy_to_host_async(self, target: int, size: int, stream: Any) -> None:
        self._module.log.append(("device to host", size))
        ctypes.memmove(target, self.address, size)

    def copy_from_device_async(self, source: Pointer, size: int, stream: Any) -> None:
        self._module.log.append(("device to device", size))
        ctypes.memmove(self.address, source.address, size)


class FakeCupy:
    """The module; `with fake_cupy() as cupy` puts it where `import cupy` finds it."""

    def __init__(self, devices: int) -> None:
        self.log: list[tuple[str, Any]] = []
        self.current = [0]
        self.streams: list[Any] = []
        module = self

        class ndarray:
            def __init__(self, host: Any, index: int | None = None) -> None:
                self.host = host
                self.device = SimpleNamespace(id=module.current[-1] if index is None else index)

            def __getattr__(self, name: str) -> Any:
                if name not in ("shape", "dtype", "nbytes", "size", "ndim", "flags"):
                    raise AttributeError(name)
                return getattr(self.host, name)

            @property
            def data(self) -> Pointer:
                return Pointer(module, self.host.ctypes.data)

            def reshape(self, shape: Any) -> ndarray:
                return ndarray(self.host.reshape(shape), self.device.id)

        ndarray.__module__ = "cupy"
        self.ndarray = ndarray

        class Event:
            done = True

            def synchronize(self) -> None:
                module.log.append(("event", "synchronize"))

        class Device:
            def __init__(self, index: int) -> None:
                assert 0 <= index < devices
                self.index = index

            def __enter__(self) -> None:
                module.current.append(self.index)

            def __exit__(self, *error: object) -> None:
                assert module.current.pop() == self.index

        class Stream:
            done = True

            def __init__(self, non_blocking: bool = False) -> None:
                self.device = module.current[-1]

            def __enter__(self) -> None:
                module.streams.append(self)

            def __exit__(self, *error: object) -> None:
                assert module.streams.pop() is self

            def synchronize(self) -> None:
                module.log.append(("stream", "synchronize"))

            def record(self) -> Event:
                return Event()

            def wait_event(self, event: Event) -> None:
                module.log.append(("stream", "wait"))

            def launch_host_func(self, callback: Any, argument: Any) -> None:
                callback(argument)

        null = Stream()
        self.cuda = SimpleNamespace(
            Device=Device,
            Event=Event,
            PinnedMemoryPointer=bytearray,
            Stream=Stream,
            alloc_pinned_memory=bytearray,
            get_current_stream=lambda: self.streams[-1] if self.streams else null,
            is_available=lambda: devices > 0,
            runtime=self._runtime(devices),
            Memory=Memory,
            MemoryPointer=lambda memory, offset: Pointer(module, memory.ptr + offset),
            UnownedMemory=lambda pointer, size, owner, index: SimpleNamespace(ptr=pointer, size=size),
        )

    def _runtime(self, devices: int) -> SimpleNamespace:
        """CUDA's functions; one allocation can be exported, and opened by whoever has its handle."""
        self.exported = 0
        self.opened = 0

        def export(pointer: int) -> bytes:
            self.exported = pointer
            return HANDLE

        def open_handle(handle: bytes) -> int:
            if handle != HANDLE:
                raise RuntimeError("cudaErrorInvalidValue: invalid argument")
            self.opened += 1
            return self.exported

        def close_handle(pointer: int) -> None:
            assert pointer == self.exported
            self.opened -= 1

        return SimpleNamespace(
            getDeviceCount=lambda: devices,
            getDevice=lambda: self.current[-1],
            deviceGetPCIBusId=lambda index: f"0000:{index:02}:00.0",
            deviceGetByPCIBusId=lambda address: int(address[5:7]),
            ipcGetMemHandle=export,
            ipcOpenMemHandle=open_handle,
            ipcCloseMemHandle=close_handle,
        )

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self.ndarray(np.empty(shape, dtype))

    def array(self, host: Any) -> Any:
        self.log.append(("array", host.nbytes))
        return self.ndarray(np.array(host))

    def ascontiguousarray(self, array: Any) -> Any:
        return self.ndarray(np.ascontiguousarray(array.host), array.device.id)

    def asnumpy(self, array: Any, stream: Any = None) -> Any:
        self.log.append(("asnumpy", array.nbytes))
        return np.array(array.host)


@contextlib.contextmanager
def fake_cupy(devices: int = 2) -> Iterator[FakeCupy]:
    """The module while the block lasts."""
    before = sys.modules.get("cupy")
    sys.modules["cupy"] = module = FakeCupy(devices)  # type: ignore[assignment]
    try:
        yield module
    finally:
        del sys.modules["cupy"]
        if before is not None:
            sys.modules["cupy"] = before
