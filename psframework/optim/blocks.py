"""How an update rule is run: cut into blocks that fit the cache, on several threads, without big temporaries.

A rule's arithmetic takes a dozen passes over its arrays. Over whole arrays each pass goes to memory; over
blocks all but the first stay in the cache. NumPy's ufuncs release the GIL, so blocks of one
array run on several threads. Neither borders nor threads change a bit of the result.
"""

from __future__ import annotations

import contextvars
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import threadpoolctl

from psframework.backend import Array, device_of, xp
from psframework.errors import ArgumentError

Cut: TypeAlias = Any
"""An index that cuts a block out of an array."""

BLOCK = 1 << 17
"""Elements of a block: 512 KiB of float32.

Measured over 25 million float32 on one thread, for 32, 64, 128 and 256 Ki elements: SGD 14.0, 12.8, 10.7 and
8.8 ms; Adam 48, 47, 42 and 40 ms. Larger blocks need a larger cache and share out worse over threads.
"""

_DEVICE_BLOCK = 1 << 24
"""Elements of a block on a GPU: there it only bounds the temporaries."""

_THREADED_WORK = 12
"""Below so many blocks, each counted as often as its cost, waking another thread costs more than it gives."""

_KEPT_VIEWS = 1024


class Scratch(threading.local):
    """Temporaries of a thread, kept from call to call: one block for each slot number and dtype."""

    xp: ModuleType = np

    def __init__(self) -> None:
        self._views: dict[tuple[int, tuple[int, ...], np.dtype[Any]], Array] = {}
        self._buffers: dict[tuple[int, np.dtype[Any]], Array] = {}

    def like(self, array: Array, slot: int, dtype: np.dtype[Any] | None = None) -> Array:
        """An uninitialised array of `array`'s shape; up to a block it is the same memory for equal `slot`."""
        key = (slot, array.shape, dtype or array.dtype)
        view = self._views.get(key)
        return self._make(key, array.size) if view is None else view

    def _make(self, key: tuple[int, tuple[int, ...], np.dtype[Any]], size: int) -> Array:
        slot, shape, dtype = key
        if size > BLOCK:  # a row that can't be cut
            return np.empty(shape, dtype)
        buffer = self._buffers.get((slot, dtype))
        if buffer is None:
            buffer = self._buffers[slot, dtype] = np.empty(BLOCK, dtype)
        if len(self._views) >= _KEPT_VIEWS:
            self._views.clear()
        view = self._views[key] = buffer[:size].reshape(shape)
        return view


class DeviceScratch(Scratch):
    """Temporaries on a GPU, where the allocator of the array library keeps them."""

    def __init__(self, namespace: ModuleType) -> None:
        super().__init__()
        self.xp = namespace

    def like(self, array: Array, slot: int, dtype: np.dtype[Any] | None = None) -> Array:
        """An uninitialised array of `array`'s shape, on its device."""
        made: Array = self.xp.empty(array.shape, dtype or array.dtype)
        return made


_scratch = Scratch()


def scratch_for(array: Array) -> Scratch:
    """The calling thread's temporaries for arrays like this one."""
    return _scratch if type(array) is np.ndarray else _device_scratch(array)


def _device_scratch(array: Array) -> Scratch:
    namespace = xp(array)
    return _scratch if namespace is np else DeviceScratch(namespace)


def on_device_of(array: Array) -> AbstractContextManager[object]:
    """Where temporaries for an array must be made: on its device, if there are several."""
    return nullcontext() if type(array) is np.ndarray else device_of(array)


def blocks(shape: tuple[int, ...], block: int = BLOCK) -> Iterator[tuple[slice, ...]]:
    """Index tuples that cut an array of `shape` into pieces of at most `block` elements, in C order."""
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    rows = block // max(row, 1)
    if rows:
        for start in range(0, shape[0], rows):
            yield (slice(start, min(start + rows, shape[0])),)
        return
    for start in range(shape[0]):
        for rest in blocks(shape[1:], block):
            yield (slice(start, start + 1), *rest)


def row_blocks(shape: tuple[int, ...], block: int = BLOCK) -> Iterator[tuple[slice, ...]]:
    """As `blocks`, but no row is cut: pieces are of at most `block` elements, or of one row."""
    if not shape:
        yield ()
        return
    rows = max(1, block // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        yield (slice(start, min(start + rows, shape[0])),)


def block_size(array: Array) -> int:
    """Elements of a block for arrays on this array's device."""
    return BLOCK if scratch_for(array).xp is np else _DEVICE_BLOCK


class _Pool:
    """The process's update threads; the caller is one of them, so there is one thread less in the pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None
        self._executor: ThreadPoolExecutor | None = None

    def threads(self) -> int:
        if self._threads is None:
            self._threads = _default_threads()
        return self._threads

    def set_threads(self, n: int) -> None:
        with self._lock:
            executor, self._executor, self._threads = self._executor, None, n
        if executor is not None:
            executor.shutdown(wait=False)

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max(1, self.threads() - 1), "psf-update")
            return self._executor


_pool = _Pool()


def _forget_pool() -> None:
    """A fork leaves the pool's threads behind, and its lock perhaps held."""
    global _pool
    threads, _pool = _pool._threads, _Pool()
    _pool._threads = threads


os.register_at_fork(after_in_child=_forget_pool)


def _default_threads() -> int:
    blas = [lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    return max(blas, default=0) or os.cpu_count() or 1


def set_update_threads(n: int) -> None:
    """Sets how many threads an update of a large array uses, the caller's included.

    Args:
        n: at least 1. Left alone it is the number of BLAS threads.
    """
    if n < 1:
        raise ArgumentError(f"update threads must be at least 1, not {n}")
    _pool.set_threads(n)


def update_threads() -> int:
    """How many threads an update of a large array uses, the caller's included."""
    return _pool.threads()


def run_blocks(work: Callable[[int], None], count: int, cost: int = 1) -> None:
    """Calls `work(0)` ... `work(count - 1)`, on the update threads if it pays; raises what one raised.

    Args:
        work: handles the block of that number.
        count: number of blocks.
        cost: of a block, in units of a plain SGD update.
    """
    helpers = min(update_threads(), count // 2) - 1
    if count * cost < _THREADED_WORK or helpers < 1:
        for index in range(count):
            work(index)
        return
    claims = itertools.count()

    def drain() -> None:
        while (index := next(claims)) < count:
            work(index)

    # The context carries np.errstate.
    futures = [_pool.executor().submit(contextvars.copy_context().run, drain) for _ in range(helpers)]
    try:
        drain()
    finally:
        for future in futures:
            if not future.cancel():  # a helper that never started has nothing left to do
                future.result()
