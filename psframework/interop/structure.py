"""Nested arguments and results, and nested names: what both bridges need to go through."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from psframework import nn
from psframework.backend import Array
from psframework.errors import ArgumentError, ConfigurationError


def flatten(value: Any, wanted: Callable[[Any], bool]) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """What is `wanted` in nested tuples, lists, dicts and dataclasses, and how to put others in its place.

    Returns:
        (found, rebuild): `rebuild(items)` is `value` with each found item replaced. Of what holds none it is
        the object itself.
    """
    if wanted(value):
        return [value], lambda items: items[0]
    parts = [flatten(item, wanted) for item in _items(value)]
    if not any(found for found, _ in parts):
        return [], lambda items: value

    def rebuild(items: Sequence[Any]) -> Any:
        made, start = [], 0
        for found, build in parts:
            made.append(build(items[start : start + len(found)]))
            start += len(found)
        return _with_items(value, made)

    return [item for found, _ in parts for item in found], rebuild


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, tuple | list):
        return list(value)
    return [getattr(value, field.name) for field in dataclasses.fields(value)] if _is_dataclass(value) else []


def _with_items(value: Any, items: list[Any]) -> Any:
    """`value` with other items. Copies keep what else a class has: a default factory, attributes."""
    if isinstance(value, tuple | list):
        # `_make` passes by a constructor that looks at its arguments, as that of torch's PackedSequence.
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    twin = copy.copy(value)
    if isinstance(value, dict):
        for key, item in zip(value, items):
            twin[key] = item
    else:
        for field, item in zip(dataclasses.fields(value), items):
            object.__setattr__(twin, field.name, item)  # frozen ones too
    return twin


class Branch(nn.Module):
    """A node of a tree of names: it holds parameters and buffers, and computes nothing."""


def home(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Where a dotted name belongs: a module at or below `module`, made if needed, and the last name.

    Raises:
        ArgumentError: the name, or that of a module on the way, is that of something else.
    """
    *parents, name = path.split(".")
    for part in parents:
        if part not in module._modules:
            _check_free(module, part, path)
            module.add_module(part, Branch())
        module = module.__dict__[part]
    _check_free(module, name, path)
    return module, name


def _check_free(module: nn.Module, name: str, path: str) -> None:
    if hasattr(module, name):
        raise ArgumentError(f"{path!r} cannot name a parameter or buffer here: {name!r} is taken; rename it")


def plant(
    module: nn.Module, path: str, value: nn.Parameter | Array, persistent: bool = True
) -> tuple[nn.Module, str]:
    """Makes `value` the parameter or (an array) the buffer with that dotted name; answers where it is."""
    owner, name = home(module, path)
    if isinstance(value, nn.Parameter):
        owner.register_parameter(name, value)
    else:
        owner.register_buffer(name, value, persistent)
    return owner, name


def framework(name: str) -> ModuleType:
    """The framework's own module.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"psframework.interop.{name} needs {name}: pip install 'psframework[{name}]'"
        ) from error
