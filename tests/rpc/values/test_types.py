"""Dataclasses, named tuples and enums that travel."""

import enum
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import pytest

import psframework as psf
from psframework.errors import ArgumentError, WireError
from psframework.rpc.values import types
from psframework.rpc.values.arguments import CannotTravel, decode, encode
from psframework.rpc.values.journey import Journey
from psframework.rpc.values.types import register_type


@register_type
@dataclass
class Batch:
    x: list
    name: str = "none"
    seen: int = field(default=0, init=False)


@register_type
@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    a: int
    b: Batch | None = None

    def __post_init__(self):
        if self.a < 0:
            raise ValueError("a is negative")


@register_type
class Pair(NamedTuple):
    left: int
    right: int = 2


@register_type(name="colours")
class Colour(enum.Enum):
    RED = 1
    BLUE = (2, 3)
    CRIMSON = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


class Loose(enum.IntFlag):
    A = 1


@dataclass
class Unregistered:
    x: int


Point = namedtuple("Point", "x y")


def back(value):
    journey = Journey()
    return decode(encode(value, journey), journey.parts, Journey(outgoing=False))


def test_public_name():
    assert psf.register_type is register_type


@pytest.mark.parametrize(
    "value",
    [
        Batch([1, 2], "b"),
        Frozen(a=1, b=Batch([3])),
        Pair(1),
        Pair(1, 3),
        [Frozen(a=0)],
        {Frozen(a=2): Pair(5, 6)},
    ],
    ids=repr,
)
def test_records_arrive_equal(value):
    found = back(value)
    assert found == value and type(found) is type(value)


def test_fields_that_the_constructor_does_not_take_arrive():
    batch = Batch([1])
    batch.seen = 7
    assert back(batch).seen == 7


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Colour.BLUE,
        Level.HIGH,
        Mode.READ,
        Mode.BOTH,
        Mode.READ | Mode.WRITE,
        Mode(0),
        Loose.A,
        Loose(0),
    ],
    ids=repr,
)
def test_enums_arrive_as_the_same_member(value):
    assert back(value) is value


def test_what_cannot_be_found_on_the_other_side_is_refused():
    class Local(enum.Enum):
        A = 1

    for value, reason in [
        (Local.A, "made inside a function"),
        (Loose(9), "bits without a name"),
        (Unregistered(1), r"Unregistered.*@psf\.register_type"),
        (Point(1, 2), r"Point.*@psf\.register_type"),
    ]:
        with pytest.raises(CannotTravel, match=reason):
            encode(value, Journey())


def test_what_cannot_be_registered_says_why():
    @dataclass
    class Local:
        x: int

    for kind, reason in [
        (int, "dataclasses, named tuples and enums"),
        (Local, "made inside a function"),
        (3, "takes a class"),
    ]:
        with pytest.raises(ArgumentError, match=reason):
            register_type(kind)

    @dataclass
    class Scaled:
        x: int
        scale: InitVar[int]

    @dataclass(init=False)
    class Other:
        x: int

        def __init__(self):
            self.x = 1

    with pytest.raises(ArgumentError, match="'scale', which is no field"):
        register_type(name="tests.scaled")(Scaled)
    with pytest.raises(ArgumentError, match="does not take the field 'x'"):
        register_type(name="tests.other")(Other)
    with pytest.raises(ArgumentError, match="already registered for"):
        register_type(name="colours")(Level)


def test_a_local_class_may_be_given_a_name():
    @register_type(name="tests.types.local")
    @dataclass
    class Local:
        x: int

    try:
        assert back(Local(3)) == Local(3)
        message = encode(Local(3), Journey())
    finally:
        types.forget("tests.types.local")
    with pytest.raises(WireError, match=r"'tests\.types\.local' is not registered here"):
        decode(message, [], Journey())


def test_differences_between_the_sides_are_named():
    record = types.record_of(Frozen)
    with pytest.raises(WireError, match="no field 'z'"):
        record.put_together({"a": 1, "z": 2})
    with pytest.raises(WireError, match=r"Frozen could not be made.*a is negative"):
        record.put_together({"a": -1})
    with pytest.raises(WireError, match="could not be made"):
        record.put_together({})
    assert record.put_together({"a": 1}) == Frozen(a=1), "a field that the sender lacks has its default"
    with pytest.raises(WireError, match=rf"near it: {__name__}\.Batch"):
        types.record_named(f"{__name__}.Batc")


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("colours", ["GREEN"]),
        ("colours", []),
        ("colours", ["RED", "BLUE"]),
        (f"{__name__}.Batch", ["x"]),
        ("builtins.int", ["real"]),
        ("no.such", ["A"]),
        (f"{__name__}.Mode", ["_value_"]),
    ],
)
def test_enums_that_are_not_known_here(name, names):
    with pytest.raises(WireError):
        types.enum_member(name, names)


def test_a_named_tuple_that_is_made_otherwise_says_so_when_it_is_registered():
    class Square(namedtuple("Square", "a b")):
        def __new__(cls, side):
            return super().__new__(cls, side, side)

    with pytest.raises(ArgumentError, match=r"'side', which is no field"):
        register_type(name="tests.square")(Square)


def test_whatever_a_constructor_raises_is_an_error_of_the_message():
    @register_type(name="tests.types.leaves")
    @dataclass
    class Leaves:
        code: int

        def __post_init__(self):
            if self.code == 4:
                raise KeyError(10**5000)  # which Python does not write
            if self.code:
                raise SystemExit(self.code)

    try:
        record = types.record_of(Leaves)
        with pytest.raises(WireError, match="could not be made again: SystemExit: 3"):
            record.put_together({"code": 3})
        with pytest.raises(WireError, match="could not be made again: KeyError: "):
            record.put_together({"code": 4})
    finally:
        types.forget("tests.types.leaves")
