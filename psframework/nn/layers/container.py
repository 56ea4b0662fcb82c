"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter

C = TypeVar("C", bound="_Container")
S = TypeVar("S", bound="_ModuleSequence")


class _Container(Module):
    """Holds modules or parameters, which may change: it is made again of those that it holds then."""

    def __new__(cls: type[C], *args: Any, **kwargs: Any) -> C:
        """Keeps the arguments of a subclass's own constructor; its own may be a generator, used up."""
        return super().__new__(cls, *args, **kwargs) if cls._own_constructor() else super().__new__(cls)

    @classmethod
    def _own_constructor(cls) -> bool:
        """Whether a subclass elsewhere defines what its constructor takes."""
        return cls.__init__.__module__ != __name__

    @property
    def _constructor(self) -> tuple[tuple[Any, ...], dict[str, Any]]:  # type: ignore[override]
        """What the constructor makes the module again of."""
        kept: tuple[tuple[Any, ...], dict[str, Any]] = self.__dict__["_constructor"]
        return kept if self._own_constructor() else (self._contents(), {})

    def _contents(self) -> tuple[Any, ...]:
        """Arguments of the constructor for what the container holds now."""
        raise NotImplementedError


class _ModuleSequence(_Container):
    """Modules in an order, named by their places."""

    def append(self: S, module: Module) -> S:
        """Adds a module at the end, named by its place."""
        place = len(self)
        while str(place) in self._modules:  # in a part of another sequence places do not begin with 0
            place += 1
        self.add_module(str(place), _checked(module))
        return self

    def extend(self: S, modules: Iterable[Module]) -> S:
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Puts a module before the one at `index`; names become places."""
        modules = list(self.children())
        modules.insert(index, _checked(module))
        self._set(modules)

    def pop(self, index: int = -1) -> Module:
        """Takes a module out, and returns it; names become places."""
        modules = list(self.children())
        module = modules.pop(index)
        self._set(modules)
        return module

    def _set(self, modules: Sequence[Module]) -> None:
        for name in list(self._modules):
            delattr(self, name)
        self.extend(modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[index], _checked(module))

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self.children())
        del modules[index]
        self._set(modules)


class Sequential(_ModuleSequence):
    """Applies modules one after the other.

    Args:
        modules: the modules, named "0", "1", ...; or one dict of modules by name.
    """

    def __init__(self, *modules: Module | Mapping[str, Module]):
        by_name = modules[0] if len(modules) == 1 and isinstance(modules[0], Mapping) else None
        for name, module in by_name.items() if by_name is not None else enumerate(modules):
            self.add_module(str(name), _checked(module))

    def _contents(self) -> tuple[Any, ...]:
        modules = dict(self.named_children())
        return tuple(modules.values()) if list(modules) == [*map(str, range(len(self)))] else (modules,)

    def forward(self, x: Any) -> Any:
        """Applies the modules in order."""
        for module in self.children():
            x = module(x)
        return x

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: int | slice) -> Module:
        """One module, or a Sequential of some, under the same names."""
        named = list(self.named_children())
        return Sequential(dict(named[index])) if isinstance(index, slice) else named[index][1]


class Identity(Module):
    """Returns its input: a layer to put where none is wanted. It takes any arguments, and forgets them."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def forward(self, x: Any) -> Any:
        """Returns `x`."""
        return x


class ModuleList(_ModuleSequence):
    """A list of modules, whose parameters count as the owner's; it has no forward of its own."""

    def __init__(self, modules: Iterable[Module] = ()):
        self.extend(modules)

    def _contents(self) -> tuple[Any, ...]:
        return (list(self),)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...

    def __getitem__(self, index: int | slice) -> Module:
        """One module, or a list of some."""
        modules = list(self.children())
        return ModuleList(modules[index]) if isinstance(index, slice) else modules[index]


class ModuleDict(_Container):
    """Modules by name, whose parameters count as the owner's; it has no forward of its own.

    Args:
        modules: by name; a name is an attribute too, so it has no dots and is no method's.
    """

    def __init__(self, modules: Mapping[str, Module] | None = None):
        self.update(modules or {})

    def _contents(self) -> tuple[Any, ...]:
        return (dict(self.items()),)

    def update(self, modules: Mapping[str, Module]) -> None:
        """Adds modules, or replaces those of the same names."""
        for name, module in modules.items():
            self[name] = module

    def pop(self, name: str) -> Module:
        """Takes a module out, and returns it."""
        module = self[name]
        del self[name]
        return module

    def __getitem__(self, name: str) -> Module:
        return self.get_submodule(name)

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, _checked(module))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterator[Module]:
        """The modules."""
        return self.children()

    def items(self) -> Iterator[tuple[str, Module]]:
        """Names with their modules."""
        return self.named_children()


class ParameterList(_Container):
    """A list of parameters, which count as the owner's.

    Args:
        parameters: Parameters; arrays and Tensors become such.
    """

    def __init__(self, parameters: Iterable[Parameter | Tensor | Array] = ()):
        for parameter in parameters:
            self.append(parameter)

    def _contents(self) -> tuple[Any, ...]:
        return ([parameter.data for parameter in self],)

    def append(self, parameter: Parameter | Tensor | Array) -> ParameterList:
        """Adds a parameter at the end."""
        self.register_parameter(str(len(self)), _as_parameter(parameter))
        return self

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return (self.__dict__[name] for name in self._parameters)

    def __getitem__(self, index: int) -> Parameter:
        return list(self)[index]

    def __setitem__(self, index: int, parameter: Parameter | Tensor | Array) -> None:
        setattr(self, list(self._parameters)[index], _as_parameter(parameter))


class ParameterDict(_Container):
    """Parameters by name, which count as the owner's.

    Args:
        parameters: Parameters by name; arrays and Tensors become such.
    """

    def __init__(self, parameters: Mapping[str, Parameter | Tensor | Array] | None = None):
        for name, parameter in (parameters or {}).items():
            self[name] = parameter

    def _contents(self) -> tuple[Any, ...]:
        return ({name: parameter.data for name, parameter in self.items()},)

    def __getitem__(self, name: str) -> Parameter:
        return self.get_parameter(name)

    def __setitem__(self, name: str, parameter: Parameter | Tensor | Array) -> None:
        self.register_parameter(name, _as_parameter(parameter))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._parameters.keys()

    def values(self) -> Iterator[Parameter]:
        """The parameters."""
        return (self.__dict__[name] for name in self._parameters)

    def items(self) -> Iterator[tuple[str, Parameter]]:
        """Names with their parameters."""
        return self.named_parameters(recurse=False, remove_duplicate=False)


def _as_parameter(value: Parameter | Tensor | Array) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


def _checked(value: object) -> Module:
    if not isinstance(value, Module):
        advice = ": unpack it, Sequential(*layers)" if isinstance(value, list | tuple) else ""
        raise ArgumentError(f"a container takes modules, not {type(value).__name__}{advice}")
    return value
