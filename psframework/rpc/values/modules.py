"""Modules as values: what made one, and the state that makes another of its class equal to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from psframework import backend
from psframework.errors import ArgumentError, AutogradError, ModelMismatch, WireError
from psframework.nn import Module, Parameter
from psframework.nn.making import Bound

ARRAYS, FROZEN, RESTING, SHARED = "arrays", "frozen", "resting", "shared"


class Modules:
    """The modules of one message while it is read.

    Args:
        bound: of what layers may take before their states are looked at.

    Attributes:
        allowed: names of classes that the peer may call.
    """

    __slots__ = ("_made", "_stateless", "allowed", "bound")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.allowed: set[str] = set()
        self._made: list[Module] = []
        self._stateless: set[Module] = set()

    def add(self, module: Module, state: object) -> None:
        """One was made; its state is None if that comes with the state of a module around it.

        Raises:
            WireError: the state is not one of such a module.
        """
        if state is None:
            self._stateless.add(module)
        else:
            restore(module, state)
            self._stateless.difference_update(module.modules())
        self._made.append(module)

    def again(self, number: int) -> Module:
        """The module that was made as the how-manieth, from 0; WireError if there were not so many."""
        if number >= len(self._made):
            raise WireError(f"module {number} of a value that had {len(self._made)} so far")
        return self._made[number]

    def check(self) -> None:
        """At the end: each has its state; WireError names those that have none."""
        if self._stateless:
            names = sorted({type(module).__name__ for module in self._stateless})
            raise WireError(f"modules without their states: {', '.join(names)}")


def is_layer(kind: Any) -> bool:
    """Whether `nn`'s own code makes objects of a class: within what arrived, their arrays all from there."""
    makers = (kind.__init__, getattr(kind, "reset_parameters", None))
    homes = [getattr(maker, "__module__", "") for maker in makers if maker is not None]
    return all(home.startswith("psframework.nn.") for home in homes)


def state_of(module: Module) -> dict[str, Any]:
    """All that a new module of the same class and arguments lacks, as a plain value. The arrays are views."""
    tables = {path: layer.__dict__[name] for path, layer, name in _tables(module)}
    return {
        ARRAYS: module.state_dict(copy=False) | tables,
        FROZEN: [path for path, parameter in _parameters(module) if not parameter.requires_grad],
        RESTING: [path for path, each in module.named_modules() if not each.training],
        SHARED: [paths for paths in _places(module).values() if len(paths) > 1],
    }


def restore(module: Module, state: object) -> None:
    """Gives a new module the state that `state_of` another described.

    Values are copied, unless they differ in dtype or device: then the module takes the arrays that arrived.

    Raises:
        WireError: the state is not one of such a module; the message says in which names and shapes.
    """
    arrays, frozen, resting, shared = _parts(state)
    parameters, submodules = dict(_parameters(module)), dict(module._walk(""))
    named = frozen.union(*shared)
    for path in named - parameters.keys() | resting - submodules.keys():
        raise WireError(f"{type(module).__name__} has no {path!r} here: both sides must define it alike")
    _share(module, shared)
    try:
        _take_tables(module, arrays)
        _take_kinds(module, arrays)
        module.load_state_dict(arrays)
    except (ModelMismatch, ArgumentError, AutogradError) as error:
        raise WireError(str(error)) from None
    for path, submodule in submodules.items():
        submodule.training = path not in resting
    for path, parameter in _parameters(module):
        parameter.requires_grad = path not in frozen


def _tables(module: Module) -> Iterator[tuple[str, Module, str]]:
    """What layers compute when they are made, which is no part of a state dict: path, layer, attribute."""
    for path, owner, name, is_buffer in module._places(""):
        if is_buffer and not owner._buffers[name] and is_layer(type(owner)):
            yield path, owner, name


def _parameters(module: Module) -> Iterator[tuple[str, Parameter]]:
    """Parameters by name, one that is shared under each of its names."""
    return module.named_parameters(remove_duplicate=False)


def _places(module: Module) -> dict[Parameter, list[str]]:
    """All names of each parameter."""
    places: dict[Parameter, list[str]] = {}
    for path, parameter in _parameters(module):
        places.setdefault(parameter, []).append(path)
    return places


def _share(module: Module, shared: list[list[str]]) -> None:
    """Names that were of one parameter are so here, and no others: whatever the constructor did."""
    if shared == [paths for paths in _places(module).values() if len(paths) > 1]:
        return
    first = {path: paths[0] for paths in shared for path in paths}
    ones: dict[str, Parameter] = {}
    for path, parameter in list(_parameters(module)):
        one = ones.get(first.get(path, path))
        if one is None:
            taken = parameter in set(ones.values())
            one = ones[first.get(path, path)] = Parameter(parameter.data.copy()) if taken else parameter
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, one)


def _parts(state: object) -> tuple[dict[str, Any], set[str], set[str], list[list[str]]]:
    if not isinstance(state, dict) or state.keys() != {ARRAYS, FROZEN, RESTING, SHARED}:
        raise WireError("the state of a module is not complete")
    arrays, frozen, resting, shared = state[ARRAYS], state[FROZEN], state[RESTING], state[SHARED]
    named = isinstance(arrays, dict) and all(
        isinstance(name, str) and backend.is_array(array) for name, array in arrays.items()
    )
    lists = [frozen, resting, *(shared if isinstance(shared, list) else [None])]
    if not named or not all(map(_are_names, lists)) or [] in lists[2:]:
        raise WireError("the state of a module is arrays by name, and lists of names")
    return arrays, set(frozen), set(resting), shared


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _take_tables(module: Module, arrays: dict[str, Any]) -> None:
    for path, layer, name in list(_tables(module)):
        own, given = layer.__dict__[name], arrays.pop(path, None)
        if given is None or given.shape != own.shape:
            raise ArgumentError(f"{path}, of shape {own.shape} here, is missing or has another shape")
        _check_kind(path, own, given)
        layer.__dict__[name] = given.copy()


def _check_kind(path: str, own: Any, given: Any) -> None:
    if _is_real_or_complex(given.dtype) != _is_real_or_complex(own.dtype):
        raise ArgumentError(f"{path} is {own.dtype} here, {given.dtype} arrived")


def _is_real_or_complex(dtype: Any) -> tuple[bool, bool]:
    return backend.is_floating(dtype), dtype.kind == "c"


def _take_kinds(module: Module, arrays: Mapping[str, Any]) -> None:
    """Makes room in the dtype, and on the device, of what arrived."""
    for path, owner, name, is_buffer in module._places(""):
        given = arrays.get(path)
        held = owner.__dict__[name]
        own = held if is_buffer else held.data
        if given is None or given.shape != own.shape:
            continue  # the strict load names it
        if given.dtype == own.dtype and backend.device_of(given) == backend.device_of(own):
            continue
        _check_kind(path, own, given)
        if is_buffer:
            owner.__dict__[name] = given.copy()
        else:
            held.data = given.copy()
