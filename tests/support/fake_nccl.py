"""Enough of CuPy and NCCL for `collective/nccl.py`: addresses of host memory, and ranks that are threads."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np

from psframework import backend
from psframework.backend.platforms import HostPlatform

TYPES = {0: "i1", 1: "u1", 2: "i4", 3: "u4", 4: "i8", 5: "u8", 7: "f4", 8: "f8"}
OPS = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum}


class GpuArray(np.ndarray):
    """An array that says where it is as CuPy's do."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


def on_gpu(array: Any) -> GpuArray:
    return np.array(array).view(GpuArray)


class Stream:
    """One in which everything has been done; `stuck` ones never get there."""

    raw = SimpleNamespace(ptr=7)

    def __init__(self, stuck: bool = False) -> None:
        self.done = not stuck

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class FakeCuda(HostPlatform):
    """The platform of GpuArrays."""

    kind = "cuda"
    indexed = True

    def stream(self, index: int) -> Any:
        return Stream()


class FakeNccl:
    """`cupy.cuda.nccl` of several ranks of one process, each in a thread of its own."""

    available = True

    def __init__(self) -> None:
        self.worlds: dict[tuple[int, ...], World] = {}
        self.groups = 0
        self._lock = threading.Lock()
        self._made = 0

    def get_unique_id(self) -> tuple[int, ...]:
        self._made += 1
        return (self._made, *([-128] * 127))

    def groupStart(self) -> None:
        with self._lock:
            self.groups += 1

    def groupEnd(self) -> None: ...

    def NcclCommunicator(self, size: int, unique: tuple[int, ...], rank: int) -> Communicator:
        assert len(unique) == 128
        with self._lock:
            world = self.worlds.setdefault(unique, World(size))
        world.barrier.wait(10)  # as NCCL, it waits for all ranks
        return Communicator(world, rank)


class World:
    """What the communicators of a group share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.given: dict[int, np.ndarray] = {}
        self.letters: defaultdict[tuple[int, int], Queue[bytes]] = defaultdict(Queue)
        self.calls: list[str] = []
        self.aborted = 0


def memory(address: int, count: int, kind: int) -> np.ndarray:
    dtype = np.dtype(TYPES[kind])
    if count == 0:
        return np.empty(0, dtype)
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)


class Communicator:
    """The methods of `NcclCommunicator`, with its arguments."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank

    def _all(self, name: str, array: np.ndarray) -> list[np.ndarray]:
        world = self._world
        world.given[self._rank] = array.copy()
        world.calls.append(name)
        world.barrier.wait(10)
        found = [world.given[rank] for rank in range(world.barrier.parties)]
        world.barrier.wait(10)
        return found

    def _total(self, name: str, send: int, count: int, kind: int, op: int) -> np.ndarray:
        parts = self._all(name, memory(send, count, kind))
        total = parts[0]
        for part in parts[1:]:
            total = OPS[op](total, part)
        return total

    def allReduce(self, send: int, recv: int, count: int, kind: int, op: int, stream: int) -> None:
        memory(recv, count, kind)[...] = self._total("allReduce", send, count, kind, op)

    def reduce(self, send: int, recv: int, count: int, kind: int, op: int, root: int, stream: int) -> None:
        total = self._total("reduce", send, count, kind, op)
        if self._rank == root:
            memory(recv, count, kind)[...] = total

    def reduceScatter(self, send: int, recv: int, count: int, kind: int, op: int, stream: int) -> None:
        total = self._total("reduceScatter", send, count * self._world.barrier.parties, kind, op)
        memory(recv, count, kind)[...] = total[self._rank * count : (self._rank + 1) * count]

    def bcast(self, buffer: int, count: int, kind: int, root: int, stream: int) -> None:
        found = self._all("bcast", memory(buffer, count, kind))[root]
        memory(buffer, count, kind)[...] = found

    def allGather(self, send: int, recv: int, count: int, kind: int, stream: int) -> None:
        found = np.concatenate(self._all("allGather", memory(send, count, kind)))
        memory(recv, len(found), kind)[...] = found

    def send(self, buffer: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._world.calls.append("send")
        self._world.letters[self._rank, peer].put(memory(buffer, count, kind).tobytes())

    def recv(self, buffer: int, count: int, kind: int, peer: int, stream: int) -> None:
        data = self._world.letters[peer, self._rank].get(timeout=10)
        memory(buffer, count, kind)[...] = np.frombuffer(data, TYPES[kind])

    def abort(self) -> None:
        self._world.aborted += 1


class FakeCupy:
    """The module: an array made by it is a GpuArray."""

    def __init__(self) -> None:
        self.settled = 0
        self.cuda = SimpleNamespace(nccl=FakeNccl(), get_current_stream=self._stream)

    def _stream(self) -> Any:
        return SimpleNamespace(synchronize=self._synchronize)

    def _synchronize(self) -> None:
        self.settled += 1

    def empty(self, shape: Any, dtype: Any) -> GpuArray:
        return np.empty(shape, dtype).view(GpuArray)

    def ascontiguousarray(self, array: GpuArray) -> GpuArray:
        return np.ascontiguousarray(array).view(GpuArray)

    def install(self, monkeypatch: Any) -> None:
        """`backend` finds it, and takes GpuArrays for CuPy's."""
        platform = FakeCuda()
        backend.register_namespace(GpuArray, self)
        backend.register_platform(platform, GpuArray)
        monkeypatch.setattr(backend, "cupy", lambda: self)
