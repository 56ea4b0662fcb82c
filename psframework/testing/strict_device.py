"""A device without hardware: arrays that refuse what CuPy's refuse, so that host/device mistakes show in CI.

`StrictDevice("gpu-0")` answers as a module does (`device.zeros`, `device.exp`). Its arrays compute by NumPy,
but are never converted to NumPy silently, and never mixed with NumPy's arrays or another device's. As on CuPy
reductions answer arrays without axes, never scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from psframework import backend
from psframework.backend import Array

_PLAIN = (bool, int, float, complex, str, slice, type(None), type(Ellipsis), np.generic, np.dtype, type)


class StrictDevice:
    """NumPy's functions over arrays of one device. The arrays' class is `device.ndarray`.

    Args:
        name: for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ndarray: type[StrictArray] = type(f"StrictArray_{name}", (StrictArray,), {"device": self})
        self.lib = _Functions(self, np.lib, ("stride_tricks",))
        backend.register_namespace(self.ndarray, self)

    def __getattr__(self, name: str) -> Any:
        return _wrapped(self, getattr(np, name))

    def to_device(self, host: Array) -> Any:
        """A copy of a host array on this device."""
        return self.wrap(np.array(host), ())

    def asnumpy(self, array: StrictArray) -> Array:
        """A copy on the host: the explicit way back."""
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
        return tuple(self.wrap(item, sources) for item in value) if isinstance(value, tuple) else value


def _owner(host: Array, sources: tuple[Any, ...]) -> StrictArray | None:
    for source in sources:
        if isinstance(source, StrictArray) and host.base is not None:
            if host.base is source.host:
                return source
            if host.base is source.host.base:
                return source if source.base is None else source.base
    return None


def _call(device: StrictDevice, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    out = kwargs.get("out")
    plain = {key: device.unwrap(value) for key, value in kwargs.items()}
    result = function(*(device.unwrap(arg) for arg in args), **plain)
    return result if out is None else out, args


def _run(device: StrictDevice, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    result, sources = _call(device, function, args, kwargs)
    return result if isinstance(result, StrictArray) else device.wrap(result, sources)


def _wrapped(device: StrictDevice, target: Any) -> Any:
    if isinstance(target, type) or not callable(target):
        return target
    return _Functions(device, target, ("reduce", "at", "reduceat", "as_strided"))


class _Functions:
    """A function of NumPy's, and those that hang on it (`add.reduce`, `lib.stride_tricks.as_strided`)."""

    def __init__(self, device: StrictDevice, target: Any, names: tuple[str, ...]) -> None:
        self._device, self._target, self._names = device, target, names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run(self._device, self._target, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in (*self._names, "as_strided"):
            raise AttributeError(name)
        return _Functions(self._device, getattr(self._target, name), ())


class StrictArray:
    """An array of a `StrictDevice`.

    Attributes:
        device: where it is.
        host: the values, for tests.
        base: the array that this one is a view of, or None.
    """

    __array_ufunc__ = None
    device: StrictDevice
    host: Array
    base: StrictArray | None

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise TypeError(
            f"implicit conversion of an array of {self.device.name} to NumPy: use backend.asnumpy"
        )

    def __getattr__(self, name: str) -> Any:
        # Not NumPy's protocols either (__array_interface__): they are conversions too.
        if name.startswith("__") or name in ("host", "base"):
            raise AttributeError(name)
        value = getattr(self.host, name)
        if not callable(value):
            return self.device.wrap(value, (self,)) if isinstance(value, np.ndarray) else value
        if name in ("item", "tolist"):
            return value

        def method(*args: Any, **kwargs: Any) -> Any:
            result, _ = _call(self.device, value, args, kwargs)
            return result if isinstance(result, StrictArray) else self.device.wrap(result, (self,))

        return method

    def __getitem__(self, key: Any) -> Any:
        return self.device.wrap(self.host[self.device.unwrap(key)], (self,))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[self.device.unwrap(key)] = self.device.unwrap(value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.host)

    def __bool__(self) -> bool:
        return bool(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __repr__(self) -> str:
        return f"{self.host!r} on {self.device.name}"

    __hash__ = object.__hash__


def _operator(name: str, in_place: bool) -> Callable[..., Any]:
    def method(self: StrictArray, *others: Any) -> Any:
        result = getattr(self.host, name)(*(self.device.unwrap(other) for other in others))
        return self if in_place else self.device.wrap(result, (self,))

    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
for _name in _BINARY:
    for _prefix in ("", "r", "i"):
        setattr(StrictArray, f"__{_prefix}{_name}__", _operator(f"__{_prefix}{_name}__", _prefix == "i"))
for _name in ("neg", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(StrictArray, f"__{_name}__", _operator(f"__{_name}__", False))
