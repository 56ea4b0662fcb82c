"""Devices by name: `psf.device("cuda:1")`, and which one an array is on."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from types import TracebackType
from typing import Any

import numpy as np

from psframework.backend import platforms, scopes
from psframework.backend.platforms import Platform
from psframework.errors import ArgumentError

_ndarray = np.ndarray


@dataclasses.dataclass(frozen=True)
class Device:
    """A place where arrays live. As a context manager it is where this task allocates.

        with psf.device("cuda:1"):
            x = psf.tensor([1.0, 2.0])

    `psf.compute` takes it along to the compute thread. CuPy keeps its current device for each thread, so do
    not await anything else inside.

    Attributes:
        kind: "cpu" or "cuda".
        index: which one of the kind.
    """

    kind: str
    index: int = 0

    @property
    def platform(self) -> Platform:
        """What knows how to reach devices of this kind."""
        platform = platforms.platform_named(self.kind)
        if platform is None:
            raise ArgumentError(f"no device {self.kind!r}: the kinds are {', '.join(platforms.kinds())}")
        return platform

    def __str__(self) -> str:
        known = platforms.platform_named(self.kind)
        return f"{self.kind}:{self.index}" if known is not None and known.indexed else self.kind

    def __enter__(self) -> Device:
        platform, index = self.platform, self.index
        scopes.push(self.kind, index, lambda: platform.enter(index))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scopes.pop()


CPU = Device("cpu")


def current_device() -> Device:
    """Where this task allocates: the innermost `with device:`, else the CPU."""
    scope = scopes.innermost()
    return _device(scope.kind, scope.number) if scope else CPU


def device(name: str | Device) -> Device:
    """The device of a name.

    Args:
        name: "cpu", "cuda" (the current one), "cuda:1", or a device, which is checked.

    Raises:
        ArgumentError: no such device here; the message says what is missing.
    """
    kind, colon, number = str(name).partition(":")
    platform = platforms.platform_named(kind)
    if platform is None:
        raise ArgumentError(f"no device {str(name)!r}: the kinds are {', '.join(platforms.kinds())}")
    if colon and not (number.isascii() and number.isdigit()):
        raise ArgumentError(f"no device {str(name)!r}: write a number after the colon, as in '{kind}:0'")
    count = platform.count()
    if not count:
        raise ArgumentError(f"no device {str(name)!r}: {platform.missing()}")
    index = int(number) if colon else platform.current()
    if index >= count:
        found = "only " + ", ".join(str(_device(kind, i)) for i in range(count))
        raise ArgumentError(f"no device {str(name)!r}: this machine has {found}")
    return _device(kind, index)


@lru_cache(maxsize=256)
def _device(kind: str, index: int) -> Device:
    return Device(kind, index)


def device_of(array: Any) -> Device:
    """The device that an array is on.

    Raises:
        ArgumentError: it is no array.
    """
    if type(array) is _ndarray:
        return CPU
    platform = platforms.platform_of(array)
    if platform is None:
        raise ArgumentError(f"{type(array).__name__} is on no device: pass a NumPy or CuPy array")
    return _device(platform.kind, platform.index_of(array))
