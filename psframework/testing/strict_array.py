"""Arrays of a strict device: NumPy's inside, without the ways out of it that CuPy's don't have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from psframework.backend import Array
from psframework.testing import cupy_api

if TYPE_CHECKING:
    from psframework.testing.strict_device import StrictDevice

_SYNCHRONISING = frozenset(("item", "tolist", "nonzero", "tobytes"))


class Flags:
    """Memory layout, as far as CuPy tells it."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous = bool(flags.c_contiguous), bool(flags.f_contiguous)
        self.owndata, self.forc, self.fnc = bool(flags.owndata), bool(flags.forc), bool(flags.fnc)


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

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(
            f"np.{function.__name__} was called on an array of {self.device.name}: use backend.xp(array)"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"an array of {self.device.name} can't be pickled: use backend.asnumpy")

    def __dlpack__(self, **options: Any) -> NoReturn:
        raise TypeError(f"an array of {self.device.name} can't be lent: it is on no real device")

    __dlpack_device__ = __dlpack__

    def __copy__(self) -> Any:
        return self.device.wrap(self.host.copy(), ())

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    @property
    def flags(self) -> Flags:
        """Memory layout."""
        return Flags(self.host.flags)

    def __getattr__(self, name: str) -> Any:
        # Not NumPy's protocols either (__array_interface__): they are conversions too.
        if name.startswith("__") or name in ("host", "base"):
            raise AttributeError(name)
        cupy_api.require(f"ndarray.{name}")
        if cupy_api.is_attribute(name):
            value = getattr(self.host, name)
            return self.device.wrap(value, (self,)) if isinstance(value, np.ndarray) else value
        target = getattr(self.host, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            cupy_api.check_call(f"ndarray.{name}", args, kwargs)
            if name in _SYNCHRONISING:
                self.device.synchronisations += 1
            if name in ("item", "tolist", "tobytes"):
                return target(*args, **kwargs)
            result = self.device.call(target, args, kwargs)
            return result if isinstance(result, StrictArray) else self.device.wrap(result, (self,))

        return method

    def __getitem__(self, key: Any) -> Any:
        if _counts_elements(key):
            self.device.synchronisations += 1
        return self.device.wrap(self.host[self.device.unwrap(key)], (self,))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[self.device.unwrap(key)] = self.device.unwrap(value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("shape", "dtype", "strides"):
            setattr(self.host, name, value)
        else:
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.host)

    def _scalar(self, convert: Callable[[Any], Any]) -> Any:
        self.device.synchronisations += 1
        return convert(self.host)

    def __bool__(self) -> bool:
        return bool(self._scalar(bool))

    def __float__(self) -> float:
        return float(self._scalar(float))

    def __int__(self) -> int:
        return int(self._scalar(int))

    def __complex__(self) -> complex:
        return complex(self._scalar(complex))

    def __index__(self) -> int:
        return int(self._scalar(lambda host: host.__index__()))

    def __repr__(self) -> str:
        return repr(self.host)

    __hash__ = None  # type: ignore[assignment]


def _counts_elements(key: Any) -> bool:
    """Whether the size of a selection depends on values, which CuPy waits for."""
    parts = key if isinstance(key, tuple) else (key,)
    return any(isinstance(part, StrictArray) and part.host.dtype == bool for part in parts)


def _takes_over(other: Any) -> bool:
    return not isinstance(other, StrictArray) and getattr(type(other), "__array_ufunc__", other) is None


def _operator(name: str, in_place: bool) -> Callable[..., Any]:
    def method(self: StrictArray, *others: Any) -> Any:
        if any(isinstance(other, list | tuple) for other in others):
            return NotImplemented
        if any(_takes_over(other) for other in others):
            return NotImplemented  # a Tensor's turn
        with np.errstate(all="ignore"):  # a GPU does not warn
            result = getattr(self.host, name)(*(self.device.unwrap(other) for other in others))
        return self if in_place else self.device.wrap(result, (self,))

    return method


_BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "divmod",
)
for _name in _BINARY:
    for _prefix in ("", "r", "i"):
        if hasattr(np.ndarray, f"__{_prefix}{_name}__"):
            setattr(StrictArray, f"__{_prefix}{_name}__", _operator(f"__{_prefix}{_name}__", _prefix == "i"))
for _name in ("neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(StrictArray, f"__{_name}__", _operator(f"__{_name}__", False))
