"""What NumPy's functions do with Tensors: `np.concatenate([t, u])` is our operation, which records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from psframework.autograd import ops
from psframework.autograd.record import recording
from psframework.autograd.tensor import Tensor
from psframework.errors import ArgumentError, AutogradError

Function = Callable[..., Any]

# Those parameters of NumPy's that ours call otherwise. The first one is passed by its place.
_RENAMED: dict[str, dict[str, str]] = {
    "clip": {"a_min": "low", "a_max": "high", "min": "low", "max": "high"},
    "swapaxes": {"axis1": "first", "axis2": "second"},
    "where": {"x": "a", "y": "b"},
}
# Those that may have any value: they choose how the same numbers are computed.
_IDLE = frozenset(("kind", "stable", "optimize", "copy", "subok", "overwrite_input"))

# They look at an array without computing with its values, or answer what has no gradient anyway.
_HARMLESS = frozenset((
    np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.shares_memory, np.may_share_memory,
    np.array_equal, np.array_equiv, np.allclose, np.isclose, np.iscomplexobj, np.isrealobj, np.array_repr,
    np.array_str, np.array2string, np.zeros_like, np.ones_like, np.empty_like, np.searchsorted,
))  # fmt: skip


@cache
def _operations() -> dict[Function, Function]:
    """NumPy's functions, with our operation for each. Ufuncs are not among them: they refuse Tensors."""
    found: dict[Function, Function] = {np.copy: ops.clone, np.around: ops.round, np.linalg.norm: ops.norm}
    for name in ops.__all__:
        theirs = getattr(np, name, None)
        if theirs is not None and not isinstance(theirs, np.ufunc):
            found[theirs] = getattr(ops, name)
    del found[np.put_along_axis]  # ours leaves its argument as it is
    return found


@cache
def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function)


def call(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`function(*args, **kwargs)`, where a Tensor is among the arguments.

    Raises:
        AutogradError: a function that we have no operation for, while its gradient is wanted.
        ArgumentError: an argument that our operation does not take.
    """
    operation = _operations().get(function)
    if operation is not None:
        if function is np.where and len(args) == 1:
            operation = ops.nonzero
        places, names = _translated(function, operation, args, kwargs)
        return operation(*places, **names)
    if function is np.full_like:  # of the first only its shape and dtype are used
        computed: Any = (args[1:], kwargs)
    else:
        computed = () if function in _HARMLESS else (args, kwargs)
    if recording(*_tensors(computed)):
        raise AutogradError(
            f"{function.__module__}.{function.__name__} records no graph, so gradients would be lost: build "
            "it from psf.ops, or give it constants, by .detach()"
        )
    return function(*_plain(args), **_plain(dict(kwargs)))


def _translated(
    function: Function, operation: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of NumPy's function as ours takes them; what has its default value is left out."""
    parameters = _signature(function).parameters
    renamed, ours = _RENAMED.get(function.__name__, {}), _signature(operation).parameters
    places: list[Any] = []
    names: dict[str, Any] = {}
    for name, value in _signature(function).bind(*args, **kwargs).arguments.items():
        parameter = parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            places.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            names.update(value)
        elif not places:
            places.append(value)
        elif value is not parameter.default and name not in _IDLE:
            names[renamed.get(name, name)] = value
    for name in names:
        if name not in ours:
            raise ArgumentError(
                f"numpy.{function.__name__} of a Tensor takes no {name!r}: it is psf.ops."
                f"{operation.__name__}({', '.join(ours)})"
            )
    return places, names


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))


def _plain(value: Any) -> Any:
    """Arguments with every Tensor replaced by its array."""
    if isinstance(value, Tensor):
        return value.data
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
