"""CUDA devices, by CuPy. Nothing here imports it before it is asked for."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from psframework.backend import scopes
from psframework.backend.arrays import Array, DType, cupy
from psframework.backend.ipc import CudaIpc
from psframework.backend.pinned import Staging, pieces
from psframework.backend.streams import Event, Stream
from psframework.errors import ArgumentError

if TYPE_CHECKING:
    from psframework.backend.kernels import Kernels

STAGED = 1 << 20
"""Bytes from which a copy is worth cutting into pieces: below it CuPy's own staging is as good."""


class CudaStream:
    """A stream of CuPy's, which makes its device the current one as well.

    Args:
        cp: CuPy.
        index: of the device.
    """

    def __init__(self, cp: Any, index: int) -> None:
        self._cp, self._index = cp, index
        with cp.cuda.Device(index):
            self.raw = cp.cuda.Stream(non_blocking=True)

    def _enter(self) -> Callable[[], object]:
        device = self._cp.cuda.Device(self._index)
        device.__enter__()
        self.raw.__enter__()

        def undo() -> None:
            self.raw.__exit__()
            device.__exit__()

        return undo

    def __enter__(self) -> Self:
        scopes.push("cuda", self._index, self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scopes.pop()

    @property
    def done(self) -> bool:
        """Whether all work in it has ended."""
        return bool(self.raw.done)

    def synchronize(self) -> None:
        """Block this thread until all work in it has ended."""
        self.raw.synchronize()

    def record(self) -> Event:
        """An event behind the work that is in it now."""
        with self._cp.cuda.Device(self._index):
            return cast(Event, self.raw.record())

    def wait(self, event: Event) -> None:
        """Later work in this stream begins after `event`."""
        if isinstance(event, self._cp.cuda.Event):
            self.raw.wait_event(event)
        else:
            event.synchronize()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` from CUDA's thread when the work that is in it now has ended."""
        self.raw.launch_host_func(lambda _: callback(), None)


class CudaPlatform:
    """What CUDA devices can do, in terms of CuPy."""

    kind = "cuda"
    indexed = True

    @cached_property
    def _found(self) -> Any:
        return cupy()

    @property
    def _cp(self) -> Any:
        """CuPy, which was found to work."""
        if self._found is None:
            raise ArgumentError(f"no CUDA device: {self.missing()}")
        return self._found

    @cached_property
    def _staging(self) -> Staging:
        return Staging(lambda size: self.pinned_empty((size,), np.dtype(np.uint8)))

    def count(self) -> int:
        """How many GPUs CUDA shows."""
        return int(self._found.cuda.runtime.getDeviceCount()) if self._found is not None else 0

    def missing(self) -> str:
        """Why there are none, and what to do."""
        if importlib.util.find_spec("cupy") is None:
            return (
                "CuPy is not installed: pip install 'psframework[cuda12]', or [cuda13], "
                "whichever CUDA version nvidia-smi shows"
            )
        try:
            importlib.import_module("cupy")
        except Exception as error:
            return f"CuPy is installed, but can't be imported: {error}"
        return "CuPy is installed, but finds no CUDA driver or no GPU: see what nvidia-smi says"

    def current(self) -> int:
        """CuPy's current device in this thread."""
        return int(self._cp.cuda.runtime.getDevice())

    def enter(self, index: int) -> Callable[[], object]:
        """Make it CuPy's current device in this thread."""
        device = self._cp.cuda.Device(index)
        device.__enter__()
        return cast(Callable[[], object], device.__exit__)

    @contextmanager
    def _on(self, index: int, stream: Stream | None) -> Iterator[Any]:
        """The device made current, and the stream that copies go to."""
        with self._cp.cuda.Device(index):
            raw = stream.raw if isinstance(stream, CudaStream) else self._cp.cuda.get_current_stream()
            with raw:
                yield raw

    def index_of(self, array: Array) -> int:
        """The GPU that `array` is on."""
        return int(array.device.id)  # type: ignore[attr-defined]

    def put(self, host: Array, index: int, stream: Stream | None) -> Array:
        """A copy on GPU `index`, through pinned staging if it is large, directly if it is pinned itself."""
        with self._on(index, stream) as raw:
            direct = self._is_pinned(host) and host.flags.c_contiguous
            if host.nbytes < STAGED and not direct:
                return cast(Array, self._cp.array(host))
            source = np.asarray(host, host.dtype.newbyteorder("="), order="C")
            out = self._cp.empty(source.shape, source.dtype)
            if direct:
                out.data.copy_from_host_async(source.ctypes.data, source.nbytes, raw)
                if stream is None:
                    raw.synchronize()  # the caller may write into it again
            else:
                self._put_pieces(source, out, raw)
            return cast(Array, out)

    def _put_pieces(self, source: Array, out: Any, raw: Any) -> None:
        start = 0
        for piece in pieces(source, self._staging.size):
            buffer = self._staging.take()
            buffer[: piece.size] = piece
            (out.data + start).copy_from_host_async(buffer.ctypes.data, piece.size, raw)
            self._staging.give_back(buffer, raw.record())
            start += piece.size

    def fetch(self, array: Array, stream: Stream | None) -> Array:
        """A copy on the host, through pinned staging if it is large."""
        with self._on(self.index_of(array), stream) as raw:
            source: Any = self._cp.ascontiguousarray(array).reshape(array.shape)
            if source.nbytes < STAGED:
                return cast(Array, self._cp.asnumpy(source, stream=raw))
            out = np.empty(source.shape, source.dtype)
            self._fetch_pieces(source, out, raw)
            return out

    def _fetch_pieces(self, source: Any, out: Array, raw: Any) -> None:
        """While the processor empties one buffer, the device fills the next."""
        pending: deque[tuple[Array, Array, Any]] = deque()
        start = 0
        for piece in pieces(out, self._staging.size):
            buffer = self._staging.take()
            (source.data + start).copy_to_host_async(buffer.ctypes.data, piece.size, raw)
            pending.append((piece, buffer, raw.record()))
            start += piece.size
            if len(pending) > 1:
                self._empty(*pending.popleft())
        while pending:
            self._empty(*pending.popleft())

    def _empty(self, piece: Array, buffer: Array, event: Any) -> None:
        event.synchronize()
        piece[...] = buffer[: piece.size]
        self._staging.give_back(buffer)

    def copy(self, array: Array, index: int, stream: Stream | None) -> Array:
        """From GPU to GPU, without the host: the copy begins after what its source's stream holds."""
        cp = self._cp
        with cp.cuda.Device(self.index_of(array)):
            source: Any = cp.ascontiguousarray(array).reshape(array.shape)
            before = cp.cuda.get_current_stream()
            ready = before.record()
        with self._on(index, stream) as raw:
            out = cp.empty(source.shape, source.dtype)
            raw.wait_event(ready)
            out.data.copy_from_device_async(source.data, source.nbytes, raw)
            copied = raw.record()
        with cp.cuda.Device(self.index_of(array)):
            before.wait_event(copied)  # its memory may be used again only then
        return cast(Array, out)

    def stream(self, index: int) -> Stream:
        """A new stream that does not wait for the default one."""
        return CudaStream(self._cp, index)

    @cached_property
    def _kernels(self) -> Kernels:
        from psframework.backend.kernels import Kernels  # of no use where there is no GPU

        return Kernels(self._cp)

    def kernels(self, array: Array) -> Kernels | None:
        """Fused kernels, compiled by CuPy when they are first used.

        None on another device than the current one: they would run on that one, and CuPy's own operations
        say what is wrong.
        """
        return self._kernels if self.index_of(array) == self.current() else None

    def pinned_empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Page-locked memory, out of CuPy's pool."""
        count = int(np.prod(shape, dtype=np.int64))
        memory = self._cp.cuda.alloc_pinned_memory(max(count * dtype.itemsize, 1))
        return np.frombuffer(memory, np.uint8, count * dtype.itemsize).view(dtype).reshape(shape)

    def ipc(self) -> CudaIpc:
        """CUDA's."""
        return CudaIpc(self._cp)

    def _is_pinned(self, array: Array) -> bool:
        base: Any = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        base = base.obj if isinstance(base, memoryview) else base
        return isinstance(base, self._cp.cuda.PinnedMemoryPointer)
