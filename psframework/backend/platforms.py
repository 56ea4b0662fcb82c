"""Kinds of devices, each with the few things that differ between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from psframework.backend.arrays import Array, DType
from psframework.backend.streams import HOST_STREAM, Stream

if TYPE_CHECKING:
    from psframework.backend.ipc import Ipc
    from psframework.backend.kernels import Kernels


class Platform(Protocol):
    """All devices of one kind."""

    kind: str
    indexed: bool
    """Whether there may be several, so that names carry a number: "cuda:0", but "cpu"."""

    def count(self) -> int:
        """How many there are."""

    def missing(self) -> str:
        """Why there are none, and what to do."""

    def current(self) -> int:
        """The one that this thread allocates on."""

    def enter(self, index: int) -> Callable[[], object]:
        """Let this thread allocate on device `index`; the answer undoes it."""

    def index_of(self, array: Array) -> int:
        """The device that `array` is on."""

    def put(self, host: Array, index: int, stream: Stream | None) -> Array:
        """A copy of a host array on device `index`."""

    def fetch(self, array: Array, stream: Stream | None) -> Array:
        """A copy of `array` on the host, complete when this returns."""

    def copy(self, array: Array, index: int, stream: Stream | None) -> Array:
        """A copy of an array of this platform on its device `index`."""

    def stream(self, index: int) -> Stream:
        """A new stream on device `index`."""

    def kernels(self, array: Array) -> Kernels | None:
        """Fused kernels for `array`, if there are any."""

    def pinned_empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Host memory that the device can copy from and to directly."""

    def ipc(self) -> Ipc | None:
        """How its memory is shared with other processes, if it can be."""


class HostPlatform:
    """The CPU."""

    kind = "cpu"
    indexed = False

    def count(self) -> int:
        """One: its cores share their memory."""
        return 1

    def missing(self) -> str:
        """Never asked."""
        return ""

    def current(self) -> int:
        """The only one."""
        return 0

    def enter(self, index: int) -> Callable[[], object]:
        """Nothing to do."""
        return _nothing

    def index_of(self, array: Array) -> int:
        """The only one."""
        return 0

    def put(self, host: Array, index: int, stream: Stream | None) -> Array:
        """A copy."""
        return host.copy()

    def fetch(self, array: Array, stream: Stream | None) -> Array:
        """A copy."""
        return array.copy()

    def copy(self, array: Array, index: int, stream: Stream | None) -> Array:
        """A copy."""
        return array.copy()

    def stream(self, index: int) -> Stream:
        """The null object."""
        return HOST_STREAM

    def kernels(self, array: Array) -> Kernels | None:
        """None: the operations' own NumPy code is as good."""
        return None

    def pinned_empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Ordinary memory: without a GPU there is nothing to pin it for."""
        return np.empty(shape, dtype)

    def ipc(self) -> Ipc | None:
        """None: host memory is shared as segments (`wire.shm`)."""
        return None


def _nothing() -> None:
    return None


HOST = HostPlatform()
_by_kind: dict[str, Platform] = {HOST.kind: HOST}
_by_class: dict[type, Platform] = {np.ndarray: HOST}


def register_platform(platform: Platform, array_type: type | None = None) -> None:
    """Make a kind of device known by its name, and by the class of its arrays."""
    _by_kind[platform.kind] = platform
    if array_type is not None:
        _by_class[array_type] = platform


def forget_platform(platform: Platform) -> None:
    """Undo `register_platform`."""
    if _by_kind.get(platform.kind) is platform:
        del _by_kind[platform.kind]
    for array_type in [key for key, known in _by_class.items() if known is platform]:
        del _by_class[array_type]


def platform_named(kind: str) -> Platform | None:
    """The platform of a kind of device."""
    return _by_kind.get(kind)


def pinning() -> Platform:
    """The platform that pins host memory: the GPU's, where there is one."""
    cuda = _by_kind.get("cuda")
    return cuda if cuda is not None and cuda.count() else HOST


def kinds() -> list[str]:
    """The kinds of devices that are known."""
    return list(_by_kind)


def platform_of(array: object) -> Platform | None:
    """The platform that `array` is on; None for what is no array of a known kind."""
    kind = type(array)
    known = _by_class.get(kind)
    if known is None:
        known = next((_by_class[base] for base in kind.__mro__ if base in _by_class), None)
        if known is None and kind.__module__.partition(".")[0] == "cupy":
            known = _by_kind.get("cuda")
        if known is None:
            return HOST if isinstance(array, np.generic) else None
        _by_class[kind] = known
    return known


def fused(array: Array) -> Kernels | None:
    """Fused kernels for an array of a GPU; None for NumPy's, whose operations are written out."""
    if type(array) is np.ndarray:
        return None
    platform = platform_of(array)
    return None if platform is None else platform.kernels(array)
