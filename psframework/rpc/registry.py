"""`@psf.remote`: what peers may call, by name.

Code reaches a process by import, never by wire: the decorator records a function or class under the path of
its module, and a call carries that name. Nothing else can be called. `nn` and `F` need no decoration.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from typing import Any, Final, TypeVar, overload

from psframework.errors import ArgumentError, NotRegistered
from psframework.rpc.naming import class_at, kind_of, qualified_name, unreachable

T = TypeVar("T")

LIBRARIES: Final = ("psframework.nn.functional", "psframework.nn")
"""Modules whose public functions and classes are registered without decoration."""

LONGEST: Final = 500
"""Characters of the longest name that is looked up."""

# Public in `nn`, but not to be made by a call: `Module` itself has no forward.
_NOT_CALLED: Final = ("HookHandle", "Module", "Summary")


class Kind(Enum):
    """How a registered thing runs."""

    FUNCTION = "function"
    COROUTINE = "async function"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"
    CLASS = "class"

    @classmethod
    def of(cls, target: object) -> Kind:
        """The kind of a function or class."""
        if inspect.isclass(target):
            return cls.CLASS
        if inspect.isasyncgenfunction(target):
            return cls.ASYNC_GENERATOR
        if inspect.iscoroutinefunction(target):
            return cls.COROUTINE
        return cls.GENERATOR if inspect.isgeneratorfunction(target) else cls.FUNCTION


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that peers may call.

    Attributes:
        name: what it travels under, such as "my_module.add" or "my_module.Net".
        target: the function, class or bound method.
        kind: how it runs.
        idempotent: whether a call may be repeated when it is not known to have run.
        roles: peers of these roles may call it; empty: all may.
    """

    name: str
    target: Callable[..., Any]
    kind: Kind
    idempotent: bool = False
    roles: frozenset[str] = frozenset()


_entries: dict[str, Entry] = {}
_names: dict[object, str] = {}  # target -> name; what a reload has replaced keeps its name
_methods: dict[str, Entry] = {}  # decorated inside classes, by name; the class comes into being later
_owners: dict[str, str] = {}  # name -> where it was defined


@overload
def remote(target: T, /) -> T: ...
@overload
def remote(
    *, idempotent: bool = False, roles: Iterable[str] = (), name: str | None = None
) -> Callable[[T], T]: ...
def remote(
    target: Any = None,
    /,
    *,
    idempotent: bool = False,
    roles: Iterable[str] = (),
    name: str | None = None,
) -> Any:
    """Lets peers call a function (plain, async, or a generator, which streams) or make objects of a class.

        @psf.remote
        def add(x, y): return x + y

        @psf.remote(idempotent=True, roles=("trainer",))
        async def look_up(key): ...

    The function or class itself stays what it is. Public methods of a registered class and of its bases can
    be called too: static and class methods as `Net.method`, others through an RRef to an object. Inside a
    class the decorator gives a method options of its own.

    Args:
        target: the function, class, static method or class method.
        idempotent: a call that may or may not have run, because its peer was lost, is repeated.
        roles: which roles may call it; a peer of another is refused. All by default.
        name: another name than that of its module and its own.

    Raises:
        ArgumentError: it can't be found by name on the other side (a lambda, a function inside another one),
            or the name belongs to something else.
    """
    if isinstance(roles, str):
        raise ArgumentError(f"roles={roles!r}: pass a tuple, as in roles=({roles!r},)")

    def register(target: T) -> T:
        _register(target, Entry(name or "", _function(target), Kind.FUNCTION, idempotent, frozenset(roles)))
        return target

    return register if target is None else register(target)


def _function(target: Any) -> Any:
    return target.__func__ if isinstance(target, staticmethod | classmethod) else target


def _register(target: object, entry: Entry) -> None:
    plain = entry.target
    if not (inspect.isclass(plain) or inspect.isfunction(plain) or (entry.name and callable(plain))):
        raise ArgumentError(
            f"@psf.remote registers functions and classes, not {kind_of(plain)}"
            + (": give it a name=" if callable(plain) else "")
        )
    if not entry.name and (why := unreachable(plain)):
        raise ArgumentError(f"{plain.__qualname__} can't be registered: {why}")
    named = entry.name
    home = _home(plain)
    entry = replace(entry, name=named or home, kind=Kind.of(plain))
    if not named and not inspect.isclass(plain) and "." in plain.__qualname__:
        _methods[entry.name] = entry
        _members.cache_clear()
        return
    if isinstance(target, classmethod):
        raise ArgumentError(f"{home}: a class method is called as Class.method, so it takes no name=")
    try:
        hash(plain)
    except TypeError:
        raise ArgumentError(f"{kind_of(plain)} can't be registered: it has no hash to be found by") from None
    owner = _owners.setdefault(entry.name, home)
    if owner != home:
        raise ArgumentError(f"{entry.name!r} is already registered by {owner}: give {home} another name=")
    # The same place again is a reload, or a notebook's cell: the newer one counts.
    _entries[entry.name] = entry
    _names[plain] = entry.name
    _members.cache_clear()


def _home(plain: Any) -> str:
    """Where something was defined, the same after a reload: an object's class, or what a partial calls."""
    while isinstance(plain, functools.partial):
        plain = plain.func
    return qualified_name(plain if hasattr(plain, "__qualname__") else type(plain))


def forget(name: str) -> None:
    """Undoes a registration (for tests)."""
    entry = _entries.pop(name, None) or _methods.pop(name, None)
    _owners.pop(name, None)
    if entry is not None:
        _names.pop(entry.target, None)
    _members.cache_clear()


# From a callable to its name


def name_of(target: Callable[..., Any] | str) -> str:
    """The name that a callable travels under.

    Args:
        target: a registered function, class, or static or class method; or a name, which the peer looks up.

    Raises:
        NotRegistered: it was not registered; the message shows how.
        ArgumentError: it can't be called by name at all: a lambda, a function inside another, a bound method.
    """
    if isinstance(target, str):
        return target
    try:
        name = _names.get(target)
    except TypeError:  # callable, but not hashable
        name = None
    return name or _library_names().get(id(target)) or _method_name(target) or _refuse(target)


def _method_name(target: Any) -> str | None:
    """The name of a static or class method; None for anything else."""
    if inspect.ismethod(target):
        if not inspect.isclass(target.__self__):
            raise ArgumentError(
                f"{target.__qualname__} is a method of one object here: call it on the object's owner, "
                f"rref.rpc_async().{target.__name__}(...)"
            )
        owner: type | None = target.__self__
    elif inspect.isfunction(target) and "." in target.__qualname__ and "<locals>" not in target.__qualname__:
        owner = class_at(target.__module__, target.__qualname__.rpartition(".")[0])
    else:
        return None
    if owner is None:
        return None
    name = f"{_names.get(owner) or qualified_name(owner)}.{target.__name__}"
    return find(name).name if owner in _names or name in _methods else None


def _refuse(target: Any) -> str:
    if not callable(target):
        raise ArgumentError(f"{kind_of(target)} can't be called: pass a registered function, or its name")
    if isinstance(target, functools.partial):
        raise ArgumentError(
            "a partial has no name: pass the registered function, and its arguments with args="
        )
    if not (inspect.isfunction(target) or inspect.isclass(target) or inspect.isbuiltin(target)):
        raise ArgumentError(f"{kind_of(target)} has no name to call it by: register a function that uses it")
    if why := unreachable(target):
        raise ArgumentError(f"{target.__qualname__} can't be called by a peer: {why}")
    if getattr(target, "__wrapped__", None) in _names:
        raise NotRegistered(f"{qualified_name(target)}: write @psf.remote above the other decorators")
    word = "class" if inspect.isclass(target) else "def"
    raise NotRegistered(
        f"{qualified_name(target)} is not registered: write @psf.remote above its `{word} {target.__name__}`"
        ", in a module that the peer imports too"
    )


# From a name to what is called


def find(name: str) -> Entry:
    """What is registered here under a name.

    Raises:
        NotRegistered: nothing; the message lists near names.
    """
    if len(name) > LONGEST:  # of a peer: neither to be remembered nor compared with all others
        raise NotRegistered(
            f"nothing is registered here as {name[:60]!r}..., a name of {len(name)} characters"
        )
    return _entries.get(name) or _members(name) or _from_library(name) or _missing(name)


@functools.lru_cache(maxsize=4096)
def _members(name: str) -> Entry | None:
    """A static or class method of a registered class, or one that was decorated itself."""
    path, _, method = name.rpartition(".")
    entry, declared = _entries.get(path), _methods.get(name)
    if entry is not None and entry.kind is Kind.CLASS:
        owner: Any = entry.target
    elif declared is not None:
        function = declared.target
        owner = class_at(function.__module__, function.__qualname__.rpartition(".")[0])
    else:
        return None
    found = _attribute(owner, method) if owner is not None else None
    if not isinstance(found, staticmethod | classmethod) or method.startswith("_"):
        if inspect.isfunction(found) and not method.startswith("_"):
            raise NotRegistered(
                f"{name} is a method of objects: call it through an RRef, rref.rpc_async().{method}(...)"
            )
        return None
    return _bound(name, getattr(owner, method), found, entry)


def method_of(value: object, method: str) -> Entry:
    """A public method of a held object, bound to it: what proxies of an RRef reach.

    Raises:
        NotRegistered: neither the object's class nor one it derives from is registered, or there is no such
            method.
    """
    owner = registered_class(type(value))
    if owner is None:
        raise NotRegistered(
            f"{qualified_name(type(value))} is not registered: write @psf.remote above the class to call "
            "methods of its objects"
        )
    found = _attribute(owner.target, method)
    if method.startswith("_") or (
        not isinstance(found, staticmethod | classmethod) and not inspect.isfunction(found)
    ):
        near = get_close_matches(method, public_methods(owner.target), 3)
        raise NotRegistered(
            f"{owner.name} has no public method {method!r}"
            + (f"; near it: {', '.join(near)}" if near else "")
        )
    return _bound(f"{owner.name}.{method}", getattr(value, method), found, owner)


def _attribute(kind: Any, name: str) -> object:
    """What a class or the nearest of its bases defines under a name, as it is; nothing of its metaclass."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _bound(name: str, target: Any, found: Any, owner: Entry | None) -> Entry:
    """The entry of a method, with its own options if it has some; its class's roles hold if it names none."""
    options = _methods.get(qualified_name(_function(found))) or owner
    assert options is not None
    roles = options.roles or (owner.roles if owner is not None else frozenset())
    return Entry(name, target, Kind.of(target), options.idempotent, roles)


def registered_class(kind: type) -> Entry | None:
    """The entry of a class, or of the nearest one it derives from; None if none is registered."""
    for base in kind.__mro__:
        name = _names.get(base) or _library_names().get(id(base))
        if name is not None:
            return find(name)
    return None


def public_methods(kind: Any) -> list[str]:
    """Names of a class's methods that peers may call, those of its bases included."""
    return sorted(
        name
        for name in dir(kind)
        if not name.startswith("_")
        and isinstance(_attribute(kind, name), staticmethod | classmethod | type(find))
    )


def entries() -> list[Entry]:
    """All that was registered in this process, by name; without the libraries."""
    return [_entries[name] for name in sorted(_entries)]


def _missing(name: str) -> Entry:
    known = [*_entries, *_methods]
    if name.startswith("psframework."):
        known += _library_names().values()
    last = name.rpartition(".")[2]
    near = [each for each in known if each.rpartition(".")[2] == last]
    near += [each for each in get_close_matches(name, known, 3) if each not in near]
    module = name.rpartition(".")[0]
    text = f"nothing is registered here as {name!r}"
    if near:
        raise NotRegistered(f"{text}; near it: {', '.join(near[:3])}")
    if name.startswith("__main__."):
        text += (
            ": what is made at a prompt, in a notebook or by `python -c` is known only there. Move it to a "
            "module, a .py file, and have workers import that: local_cluster(imports=[...]), --import"
        )
    elif module:
        text += f": import its module here (psf serve worker --import {module}, local_cluster(imports=[...]))"
    raise NotRegistered(text)


# nn and F


@functools.lru_cache(maxsize=4096)
def _from_library(name: str) -> Entry | None:
    module, _, last = name.rpartition(".")
    if module not in LIBRARIES:
        return None
    home = import_module(module)
    target = getattr(home, last) if last in home.__all__ and last not in _NOT_CALLED else None
    if not (inspect.isclass(target) or inspect.isfunction(target)):
        return None
    return Entry(name, target, Kind.of(target))


@functools.cache
def _library_names() -> dict[int, str]:
    """Names by id: the libraries are never unloaded."""
    found: dict[int, str] = {}
    for module in LIBRARIES:
        home = import_module(module)
        for name in home.__all__:
            target = getattr(home, name)
            if name not in _NOT_CALLED and (inspect.isclass(target) or inspect.isfunction(target)):
                found.setdefault(id(target), f"{module}.{name}")
    return found
