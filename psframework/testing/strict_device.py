"""A device without hardware: arrays that refuse what CuPy's refuse, so that host/device mistakes show in CI.

`StrictDevice("gpu-0")` answers as a module does (`device.zeros`, `device.exp`); `psf.device` knows its name.
Its arrays compute by NumPy, but are never converted to NumPy silently, and never mixed with NumPy's arrays or
another device's. It has only those functions and arguments that CuPy has too. As on CuPy, reductions answer
arrays without axes, never scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from psframework import backend
from psframework.backend import Array, DType, Stream
from psframework.backend.kernels import Kernels
from psframework.backend.streams import HOST_STREAM
from psframework.testing import cupy_api, kernel_emulator
from psframework.testing.strict_array import StrictArray
from psframework.testing.strict_ipc import StrictIpc

__all__ = ["StrictArray", "StrictDevice", "strict_devices"]

_PLAIN = (bool, int, float, complex, str, slice, type(None), type(Ellipsis), np.generic, np.dtype, type)
_PACKAGES = ("lib", "lib.stride_tricks", "linalg", "random", "fft")
# Their results' sizes depend on values: CuPy waits for the device.
_SYNCHRONISING = frozenset(("nonzero", "flatnonzero", "argwhere", "unique", "array_equal", "allclose"))


class StrictDevice:
    """NumPy's functions over arrays of one device, as far as CuPy has them.

    Args:
        name: of the device, for `psf.device` and for messages.
        fused: whether `backend.fused` answers the kernels for CuPy, which then run in an emulator.

    Attributes:
        ndarray: the class of its arrays.
        device: the value that `psf.device(name)` answers.
        synchronisations: how often something waited for the device: a number, a mask, a copy to the host.
    """

    def __init__(self, name: str, *, fused: bool = False) -> None:
        self.name, self.fused = name, fused
        self.synchronisations = 0
        self.ndarray: type[StrictArray] = type(f"StrictArray_{name}", (StrictArray,), {"device": self})
        self.device = backend.Device(name)
        self._platform = StrictPlatform(self)
        backend.register_namespace(self.ndarray, self)
        backend.register_platform(self._platform, self.ndarray)

    def __str__(self) -> str:
        return self.name

    def forget(self) -> None:
        """Take it out of the tables that `psf.device` and `backend.xp` look in."""
        backend.forget_namespace(self.ndarray)
        backend.forget_platform(self._platform)

    def __getattr__(self, name: str) -> Any:
        return _resolved(self, name)

    def to_device(self, host: Array) -> Any:
        """A copy of a host array on this device."""
        return self.wrap(np.array(host), ())

    def erf(self, array: StrictArray) -> Any:
        """The error function, which `cupyx.scipy.special` has."""
        return self.wrap(backend.erf(self.unwrap(array)), ())

    def asnumpy(self, array: StrictArray) -> Array:
        """A copy on the host: the explicit way back."""
        self.synchronisations += 1
        return self.unwrap(array).copy()  # type: ignore[no-any-return]

    def unwrap(self, value: Any) -> Any:
        """The host side of arguments; raises TypeError for arrays that are not on this device."""
        if isinstance(value, StrictArray):
            if value.device is not self:
                raise TypeError(f"an array of {value.device.name} was mixed with one of {self.name}")
            return value.host
        if isinstance(value, list | tuple):
            return type(value)(self.unwrap(item) for item in value)
        if isinstance(value, np.ndarray):
            raise TypeError(f"a NumPy array was given to {self.name}: move it there first")
        if not isinstance(value, _PLAIN):
            raise TypeError(f"{type(value).__name__} was given to {self.name}")
        return value

    def wrap(self, value: Any, sources: tuple[Any, ...]) -> Any:
        """Results as arrays of this device; `sources` are the arguments that a view may be over."""
        if isinstance(value, np.generic | np.ndarray):
            result = object.__new__(self.ndarray)
            result.host = np.asarray(value)
            result.base = _owner(result.host, sources)
            return result
        if isinstance(value, list | tuple):
            return type(value)(self.wrap(item, sources) for item in value)
        return value

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `function` answers for the host side of the arguments, or the `out` that was given."""
        out = kwargs.get("out")
        plain = {key: self.unwrap(value) for key, value in kwargs.items()}
        with np.errstate(all="ignore"):  # a GPU does not warn
            result = function(*(self.unwrap(arg) for arg in args), **plain)
        return result if out is None else out


def _owner(host: Array, sources: tuple[Any, ...]) -> StrictArray | None:
    if host.base is not None:
        for source in sources:
            if isinstance(source, StrictArray) and np.may_share_memory(host, source.host):
                return source if source.base is None else source.base
    return None


def _resolved(device: StrictDevice, path: str) -> Any:
    """What `device.path` is: a package, a function of CuPy's, or a type or number."""
    if path.startswith("__"):
        raise AttributeError(path)
    target: Any = np
    for part in path.split("."):
        target = getattr(target, part)
    if path in _PACKAGES:
        return _Package(device, path)
    cupy_api.require(path)
    if path == "random.default_rng":
        return lambda seed=None: StrictGenerator(device, seed)
    if isinstance(target, np.ufunc):
        return _Ufunc(device, target)
    if isinstance(target, type) or not callable(target):
        return target
    return _Function(device, path, target)


class _Package:
    """`device.linalg` and the like."""

    def __init__(self, device: StrictDevice, path: str) -> None:
        self._device, self._path = device, path

    def __getattr__(self, name: str) -> Any:
        return _resolved(self._device, f"{self._path}.{name}")


class _Function:
    """A function that NumPy and CuPy have."""

    def __init__(self, device: StrictDevice, path: str, target: Callable[..., Any]) -> None:
        self._device, self._path, self._target = device, path, target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        cupy_api.check_call(self._path, args, kwargs)
        self._device.synchronisations += self._path in _SYNCHRONISING
        result = self._device.call(self._target, args, kwargs)
        return result if isinstance(result, StrictArray) else self._device.wrap(result, args)


class _Ufunc:
    """A ufunc, which on CuPy takes arrays and numbers only, few keywords, and has few of the methods."""

    def __init__(self, device: StrictDevice, target: np.ufunc) -> None:
        self._device, self._target = device, target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._target.__name__
        if unknown := set(kwargs) - cupy_api.UFUNC_KEYWORDS:
            raise TypeError(f"{cupy_api.version()}: {name} does not take {', '.join(sorted(unknown))}=")
        if any(isinstance(arg, list) for arg in args):
            raise TypeError(f"{cupy_api.version()}: {name} takes arrays and numbers, no lists")
        return self._answer(self._target, args, kwargs)

    def _answer(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._device.call(target, args, kwargs)
        return result if isinstance(result, StrictArray) else self._device.wrap(result, args)

    def __getattr__(self, name: str) -> Any:
        if name not in cupy_api.UFUNC_METHODS:
            return getattr(self._target, name)  # how many arguments it has

        def method(*args: Any, **kwargs: Any) -> Any:
            cupy_api.check_ufunc_method(self._target.__name__, name, args, kwargs)
            return self._answer(getattr(self._target, name), args, kwargs)

        return method


class StrictGenerator:
    """`random.default_rng` of a device: NumPy's generator, whose numbers are on the device."""

    def __init__(self, device: StrictDevice, seed: Any = None) -> None:
        self._device, self._generator = device, np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        cupy_api.require(f"random.Generator.{name}")
        return _Function(self._device, f"random.Generator.{name}", getattr(self._generator, name))


class StrictPlatform:
    """A strict device as the backend sees it."""

    indexed = False

    def __init__(self, device: StrictDevice) -> None:
        self.kind, self._device = device.name, device
        self._kernels: Kernels | None = None

    def count(self) -> int:
        """One of its name."""
        return 1

    def missing(self) -> str:
        """Never asked."""
        return ""

    def current(self) -> int:
        """The only one."""
        return 0

    def enter(self, index: int) -> Callable[[], object]:
        """Nothing to do: allocations say where they are."""
        return lambda: None

    def index_of(self, array: Array) -> int:
        """The only one."""
        return 0

    def put(self, host: Array, index: int, stream: Stream | None) -> Array:
        """A copy on the device."""
        return self._device.to_device(host)  # type: ignore[no-any-return]

    def fetch(self, array: Array, stream: Stream | None) -> Array:
        """A copy on the host."""
        return self._device.asnumpy(array)  # type: ignore[arg-type]

    def copy(self, array: Array, index: int, stream: Stream | None) -> Array:
        """A copy."""
        return array.copy()

    def stream(self, index: int) -> Stream:
        """The null object."""
        return HOST_STREAM

    def kernels(self, array: Array) -> Kernels | None:
        """The kernels for CuPy, in an emulator, if the device was made so."""
        if self._device.fused and self._kernels is None:
            self._kernels = Kernels(kernel_emulator.kernels(self._device))
        return self._kernels

    def pinned_empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Ordinary memory."""
        return np.empty(shape, dtype)

    def ipc(self) -> StrictIpc:
        """Shared memory of the host, in its stead."""
        return StrictIpc(self._device)


@contextmanager
def strict_devices(*names: str, fused: bool = False) -> Iterator[list[StrictDevice]]:
    """Strict devices for the time of a block."""
    devices = [StrictDevice(name, fused=fused) for name in names]
    try:
        yield devices
    finally:
        for device in devices:
            device.forget()
