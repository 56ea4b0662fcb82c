"""`psf.register_type`: dataclasses, named tuples and enums that may travel as values."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, overload

from psframework.errors import ArgumentError, WireError
from psframework.rpc.naming import class_named, kind_of, qualified_name, type_name, unreachable

C = TypeVar("C", bound=type)
M = TypeVar("M")


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A registered dataclass or named tuple.

    Attributes:
        name: what it travels under.
        kind: the class.
        fields: names of its fields; those that its constructor takes come first.
        taken: how many of them the constructor takes.
    """

    name: str
    kind: type
    fields: tuple[str, ...]
    taken: int

    def put_together(self, values: Mapping[str, Any]) -> object:
        """The object with these fields, made by the constructor; WireError if it refuses."""
        if unknown := values.keys() - set(self.fields):
            raise WireError(f"{self.name} has no field {sorted(unknown)[0]!r} here: both sides must agree")
        late = self.fields[self.taken :]
        taken = {name: value for name, value in values.items() if name not in late}
        made: object = make_again(self.name, self.kind, (), taken)
        for name in late:
            if name in values:
                object.__setattr__(made, name, values[name])
        return made


def make_again(name: str, kind: Callable[..., M], args: Sequence[Any], kwargs: Mapping[str, Any]) -> M:
    """Calls a registered constructor for a peer; WireError if it raises."""
    try:
        return kind(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, which would end the event loop
        why = traceback.format_exception_only(error)[0].strip()  # whatever its __str__ does
        raise WireError(f"{name} could not be made again: {why}") from error


_records: dict[type, Record] = {}
_types: dict[str, type] = {}
_names: dict[type, str] = {}


@overload
def register_type(kind: C, /) -> C: ...
@overload
def register_type(*, name: str | None = None) -> Callable[[C], C]: ...
def register_type(kind: Any = None, /, *, name: str | None = None) -> Any:
    """Lets objects of a dataclass, a named tuple or an enum travel as arguments and results.

        @psf.register_type
        @dataclass
        class Batch:
            x: np.ndarray
            y: np.ndarray

    Both sides must have it. Fields travel by name; the receiver calls the constructor, and then sets the
    fields that it doesn't take. Enums at the top of a module need no registration.

    Args:
        kind: the class.
        name: another name than that of its module and its own.

    Raises:
        ArgumentError: a class of another kind, one that can't be found by name on the other side, or a name
            that belongs to another class.
    """

    def register(kind: C) -> C:
        _register(kind, name)
        return kind

    return register if kind is None else register(kind)


def _register(kind: Any, name: str | None) -> None:
    if not isinstance(kind, type):
        raise ArgumentError(f"register_type takes a class, not {kind_of(kind)}")
    if not name and (why := unreachable(kind)):
        raise ArgumentError(f"{kind.__qualname__} can't be registered: {why}")
    home = qualified_name(kind)
    name = name or home
    other = _types.get(name)
    if other is not None and other is not kind and qualified_name(other) != home:
        raise ArgumentError(f"{name!r} is already registered for {qualified_name(other)}: give another name=")
    if not issubclass(kind, enum.Enum):
        fields, taken = _fields(kind)
        _records[kind] = Record(name, kind, fields, taken)
    _types[name], _names[kind] = kind, name


def _fields(kind: type) -> tuple[tuple[str, ...], int]:
    if dataclasses.is_dataclass(kind):
        every = dataclasses.fields(kind)
        taken = [field.name for field in every if field.init]
        _check_constructor(kind, taken)
        return (*taken, *(field.name for field in every if not field.init)), len(taken)
    if is_named_tuple(kind):
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        _check_constructor(kind, names)
        return names, len(names)
    raise ArgumentError(
        f"register_type takes dataclasses, named tuples and enums, not {type_name(kind)}: "
        "decorate it with @dataclass, or send what it consists of"
    )


def _check_constructor(kind: type, taken: Sequence[str]) -> None:
    """The constructor must take what the object keeps, and nothing else."""
    parameters = inspect.signature(kind).parameters
    lacking = [name for name in taken if name not in parameters]
    extra = [name for name, p in parameters.items() if name not in taken and p.default is p.empty]
    if lacking or extra:
        what = (
            f"takes {extra[0]!r}, which is no field" if extra else f"does not take the field {lacking[0]!r}"
        )
        raise ArgumentError(
            f"the constructor of {type_name(kind)} {what}, so its objects can't be made again elsewhere"
        )


def is_named_tuple(kind: type) -> bool:
    """Whether a class was made by `namedtuple` or `NamedTuple`."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def forget(name: str) -> None:
    """Undoes a registration (for tests)."""
    kind = _types.pop(name, None)
    if kind is not None:
        _names.pop(kind, None)
        _records.pop(kind, None)


def record_of(kind: type) -> Record | None:
    """The registration of exactly this dataclass or named tuple."""
    return _records.get(kind)


def record_named(name: str) -> Record:
    """The dataclass or named tuple of a name that came from a peer; WireError if there is none."""
    kind = _types.get(name)
    record = None if kind is None else _records.get(kind)
    if record is None:
        raise WireError(f"the type {name[:200]!r} is not registered here{_near(name)}")
    return record


def enum_parts(member: enum.Enum) -> tuple[str, list[str]]:
    """What an enum's member, or a combination of flags, travels as: the name of its class, and its names.

    Raises:
        ArgumentError: peers can't find the class, or the member has no name.
    """
    kind = type(member)
    name = _names.get(kind)
    if name is None:
        if why := unreachable(kind):
            raise ArgumentError(why)
        name = qualified_name(kind)
    if isinstance(member, enum.Flag):
        names = [flag.name for flag in kind if flag in member]  # type: ignore[operator]
        named: list[str] = [each for each in names if each]
        if _combined(kind, named) != member:
            raise ArgumentError(f"it has bits without a name: {member!r}")
        return name, named
    return name, [member.name]


def enum_member(name: str, names: Sequence[str]) -> enum.Enum:
    """The member that `enum_parts` described. Looks only in what is registered or loaded; imports nothing.

    Raises:
        WireError: no such class or member here.
    """
    kind = _types.get(name) or class_named(name)
    if kind is None or not issubclass(kind, enum.Enum):
        raise WireError(
            f"the enum {name[:200]!r} is not known here{_near(name)}: import its module on both sides"
        )
    members = kind.__members__
    for each in names:
        if each not in members:
            raise WireError(f"{name} has no member {each[:200]!r} here: both sides must agree")
    if issubclass(kind, enum.Flag):
        return _combined(kind, names)
    if len(names) != 1:
        raise WireError(f"{len(names)} names for one member of {name}")
    return members[names[0]]


def _combined(kind: Any, names: Sequence[str]) -> enum.Flag:
    result: enum.Flag = kind(0)
    for name in names:
        result |= kind.__members__[name]
    return result


def _near(name: str) -> str:
    near = get_close_matches(name[:200], list(_types), 3)
    return f"; near it: {', '.join(near)}" if near else ""
