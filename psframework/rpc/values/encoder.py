"""Writes values as Value messages; how each type is written, `writers` know. `arguments` is the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from psframework.errors import ArgumentError, NotRegistered
from psframework.nn import Module
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc import naming, registry
from psframework.rpc.values import journey as journeys
from psframework.rpc.values import kinds, modules
from psframework.rpc.values.journey import Journey
from psframework.rpc.values.kinds import CannotTravel
from psframework.wire.memory import Buffer

Writer = Callable[["Encoder", Any, int], None]

# Filled by `writers` and `object_writers`: by exact type, and one function for the types of all other values.
WRITERS: Final[dict[type, Writer]] = {}
FALLBACKS: Final[list[Callable[[object], Writer]]] = []

_UNIFORM = 8  # items from which on it pays to ask whether all are of one type
_PAIR = bytes([kinds.TUPLE, 2])


class Encoder:
    """Writes one value.

    Args:
        journey: takes the parts, and is told to passengers.
    """

    __slots__ = (
        "_containers",
        "_done",
        "_inside",
        "_room",
        "blobs",
        "integers",
        "journey",
        "outline",
        "reals",
        "texts",
    )

    def __init__(self, journey: Journey) -> None:
        self.journey = journey
        self.outline = bytearray()
        self.integers: list[int] = []
        self.reals: list[float] = []
        self.texts: list[str] = []
        self.blobs: list[bytes] = []
        self._containers = 0
        self._room = kinds.ROOM
        self._done: dict[int, int] = {}  # ids of modules that were written, and the how-manieth each was
        self._inside: frozenset[int] = frozenset()  # ids of modules whose state the one around them brings

    def fill(self, message: Value, first_part: int) -> None:
        """Puts what was written into an empty message."""
        message.outline = bytes(self.outline)
        if self.blobs:
            message.blobs.extend(self.blobs)
        if self.integers:
            message.integers.extend(self.integers)
        if self.reals:
            message.reals.extend(self.reals)
        if self.texts:
            message.texts.extend(self.texts)
        if first_part:
            message.first_part = first_part

    def put(self, value: Any, depth: int = 0) -> None:
        """Writes a value; CannotTravel, with the path from here, if it or something in it can't be sent."""
        writer = WRITERS.get(type(value)) or writer_of(value)
        writer(self, value, depth)

    def pair(self, value: tuple[Any, Any]) -> None:
        """Writes a tuple of two, as `put` does."""
        self.outline += _PAIR
        self._containers = 1
        step = "[0]"
        try:
            self.put(value[0], 1)
            step = "[1]"
            self.put(value[1], 1)
        except CannotTravel as error:
            raise seen_from(error, step, value) from None

    def number(self, value: int) -> None:
        """Writes a count or another small number into the outline."""
        while value > 0x7F:
            self.outline.append(value & 0x7F | 0x80)
            value >>= 7
        self.outline.append(value)

    def open(self, kind: int, value: object, depth: int) -> int:
        """Begins a container; the depth of its items."""
        self._containers += 1
        if self._containers > kinds.MAX_CONTAINERS:
            raise CannotTravel(f"more than {kinds.MAX_CONTAINERS} lists, dicts and the like: send arrays")
        if depth >= kinds.MAX_DEPTH:
            error = CannotTravel("nested deeper than 100 levels")
            error.culprit = value
            raise error
        self.outline.append(kind)
        return depth + 1

    def items(self, items: Sequence[Any], depth: int, around: object) -> None:
        """Writes the items of a container."""
        if len(items) >= _UNIFORM and self._uniform(items):
            return
        done = 0
        try:
            for item in items:
                writer = WRITERS.get(type(item)) or writer_of(item)
                writer(self, item, depth)
                done += 1
        except CannotTravel as error:
            raise seen_from(error, f"[{done}]", around) from None

    def _uniform(self, items: Sequence[Any]) -> bool:
        """Writes items of one simple type at once."""
        first = type(items[0])
        if first is float and set(map(type, items)) == {float}:
            self.outline += bytes([kinds.REAL]) * len(items)
            self.reals += items
            return True
        if first is int and set(map(type, items)) == {int} and _fits(min(items)) and _fits(max(items)):
            self.outline += bytes([kinds.INTEGER]) * len(items)
            self.integers += items
            return True
        return False

    def named(self, items: Iterable[tuple[str, Any]], depth: int, around: object) -> None:
        """Writes values, each after its name."""
        name = ""
        try:
            for name, item in items:
                self.texts.append(name)
                self.put(item, depth)
        except CannotTravel as error:
            raise seen_from(error, f".{name}", around) from None

    def has_room(self, nbytes: int) -> bool:
        """Whether an array of that size goes inside the message; if so, it takes the room."""
        if nbytes > self._room:
            return False
        self._room -= nbytes
        return True

    def blob(self, data: Buffer, nbytes: int) -> None:
        """Writes the blob of the node that follows: inside the message, or as a part."""
        if nbytes > kinds.INLINE:
            self.outline.append(kinds.PART)
            self.journey.parts.append(data)
        else:
            self.blobs.append(bytes(data))

    def passenger(self, value: object, depth: int) -> bool:
        """Writes a value that a layer above keeps account of; False if none does."""
        found = journeys.passenger_for(type(value))
        if found is None:
            return False
        kind, passenger = found
        journey = self.journey
        outer, journey.luggage = journey.luggage, []
        data = passenger.depart(value, journey)
        luggage, journey.luggage = journey.luggage, outer
        if data is None:
            return False
        inner = self.open(kinds.PASSENGER, value, depth)
        self.texts.append(kind)
        self.blobs.append(data)
        self.number(len(luggage))
        self.items(luggage, inner, value)
        return True

    def module(self, module: Module, depth: int) -> None:
        """Writes a module: its class, what made it, and its state unless the module around it brings that."""
        if (again := self._done.get(id(module))) is not None:
            self.outline.append(kinds.SAME_MODULE)
            self.number(again)
            return
        try:
            name = registry.name_of(type(module))
        except (NotRegistered, ArgumentError) as error:
            raise CannotTravel(str(error)) from None
        inner = self.open(kinds.MODULE, module, depth)
        self.texts.append(name)
        args, kwargs = module._constructor
        outer = self._inside
        # Submodules among the constructor's arguments: their state is part of this one's.
        self._inside = outer | {id(each) for each in module.modules()}
        try:
            self.put(tuple(args), inner)
            self.put(dict(kwargs), inner)
        except CannotTravel as error:
            raise seen_from(error, ".__init__", module) from None
        finally:
            self._inside = outer
        self.put(None if id(module) in outer else modules.state_of(module), inner)
        self._done[id(module)] = len(self._done)


def writer_of(value: object) -> Writer:
    """The writer of a value whose exact type has none; CannotTravel if there is none at all."""
    return FALLBACKS[0](value)


def _fits(value: int) -> bool:
    return value in kinds.INTEGERS


def seen_from(error: CannotTravel, step: str, around: object) -> CannotTravel:
    """The error as seen from the container."""
    error.path.insert(0, step)
    if error.culprit is around and error.culprit is not None:
        error.reason = f"{naming.type_name(type(around))} contains itself"
        error.path.clear()
        error.path.append(step)
    return error
