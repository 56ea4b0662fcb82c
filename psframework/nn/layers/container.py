"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from psframework.errors import ArgumentError
from psframework.nn.module import Module


class Sequential(Module):
    """Applies modules one after the other.

    Args:
        modules: the modules, named "0", "1", ...; or one dict of modules by name.
    """

    def __init__(self, *modules: Module | Mapping[str, Module]):
        by_name = modules[0] if len(modules) == 1 and isinstance(modules[0], Mapping) else None
        for name, module in by_name.items() if by_name is not None else enumerate(modules):
            self.add_module(str(name), _checked(module))

    def forward(self, x: Any) -> Any:
        """Applies the modules in order."""
        for module in self.children():
            x = module(x)
        return x

    def append(self, module: Module) -> Sequential:
        """Adds a module at the end, named by its place."""
        self.add_module(str(len(self)), _checked(module))
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: int | slice) -> Module:
        """One module, or a Sequential of some, under the same names."""
        named = list(self.named_children())
        return Sequential(dict(named[index])) if isinstance(index, slice) else named[index][1]


class ModuleList(Module):
    """A list of modules, whose parameters count as the owner's; it has no forward of its own."""

    def __init__(self, modules: Iterable[Module] = ()):
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """Adds a module at the end."""
        self.add_module(str(len(self)), _checked(module))
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]


def _checked(value: object) -> Module:
    if not isinstance(value, Module):
        raise ArgumentError(f"a container takes modules, not {type(value).__name__}")
    return value
