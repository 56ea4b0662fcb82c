"""Nested arguments and results, and nested names: what both bridges need to go through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from psframework import nn
from psframework.backend import Array
from psframework.errors import ConfigurationError

Kinds: TypeAlias = type | tuple[type, ...]


def flatten(value: Any, kinds: Kinds) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The instances of `kinds` in nested tuples, lists and dicts, and how to put others in their places.

    Returns:
        (found, rebuild): `rebuild(items)` is `value` with each found item replaced.
    """
    if isinstance(value, kinds):
        return [value], lambda items: items[0]
    if isinstance(value, dict):
        found, rebuild = flatten(list(value.values()), kinds)
        return found, lambda items: dict(zip(value, rebuild(items)))
    if isinstance(value, tuple | list):
        parts = [flatten(item, kinds) for item in value]

        def join(items: Sequence[Any]) -> Any:
            made, start = [], 0
            for part, build in parts:
                made.append(build(items[start : start + len(part)]))
                start += len(part)
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)

        return [item for part, _ in parts for item in part], join
    return [], lambda items: value


class Branch(nn.Module):
    """A node of a tree of names: it holds parameters and buffers, and computes nothing."""


def home(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Where a dotted name belongs: a module at or below `module`, made if needed, and the last name."""
    *parents, name = path.split(".")
    for part in parents:
        child = module.__dict__.get(part)
        if not isinstance(child, nn.Module):
            child = Branch()
            module.add_module(part, child)
        module = child
    return module, name


def plant(module: nn.Module, path: str, array: Array, trainable: bool) -> nn.Parameter:
    """Makes `array` the parameter with that dotted name."""
    owner, name = home(module, path)
    parameter = nn.Parameter(array, requires_grad=trainable)
    owner.register_parameter(name, parameter)
    return parameter


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
