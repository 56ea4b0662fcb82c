"""How values are walked: paths in messages, cycles, depth, passengers."""

import re

import numpy as np
import pytest

from psframework.errors import WireError
from psframework.rpc.values import journey as journeys
from psframework.rpc.values import kinds
from psframework.rpc.values.arguments import CannotTravel, decode, encode, encode_call
from psframework.rpc.values.journey import Journey, Outcome


class Thing:
    """What no message can hold."""


def refused(value, where="value"):
    journey = Journey()
    with pytest.raises(CannotTravel) as caught:
        encode(value, journey, where)
    assert journey.outcome is Outcome.REFUSED
    return str(caught.value)


def back(value):
    journey = Journey()
    return decode(encode(value, journey), journey.parts, Journey(outgoing=False))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Thing(), "value: "),
        ([1, Thing()], "value[1]: "),
        ({"x": (1, [2, 3, {"y": Thing()}])}, "value['x'][1][2]['y']: "),
        ({(1, 2): {3: Thing()}}, "value[(1, 2)][3]: "),
        ({"k" * 500: Thing()}, "value['kkk"),
        ([0.5] * 9 + [Thing()], "value[9]: "),
        ({(1, Thing): 2}, "value key (1, <class"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_refusal_names_type_and_path(value, path):
    message = refused(value)
    assert message.startswith(path) and f"{__name__}.Thing" in message
    assert len(message) < 600


def test_a_call_is_told_by_argument():
    for args, kwargs, path in [
        ((1, {"x": [1, 2, 3, Thing()]}), {}, "args[1]['x'][3]: "),
        ((), {"model": (Thing(),)}, "kwargs['model'][0]: "),
    ]:
        with pytest.raises(TypeError) as caught:
            encode_call(args, kwargs, Journey())
        assert str(caught.value).startswith(path)


def test_what_contains_itself_is_refused():
    loop = [1]
    loop.append({"again": loop})
    assert "contains itself" in refused(loop)
    loop = {}
    loop["a"] = {"b": (loop,)}
    assert re.fullmatch(r"value\[0\]\['a'\](\S*): (dict|tuple) contains itself", refused([loop]))


def test_depth_is_bounded():
    def nested(levels):
        value = "deep"
        for _ in range(levels):
            value = [value]
        return value

    assert back(nested(100)) == nested(100)
    journey = Journey()
    encode_call((nested(100),), {"x": nested(100)}, journey)
    message = refused(nested(103))
    assert "deeper than 100" in message
    assert "deeper than 100" in refused(nested(100_000))


def test_shared_values_arrive_as_copies():
    shared = [1]
    first, second = back((shared, shared))
    assert first == second == [1] and first is not second


def test_a_small_value_that_would_become_huge_is_refused(monkeypatch):
    monkeypatch.setattr(kinds, "MAX_CONTAINERS", 1000)
    value = []
    for _ in range(60):  # 2**60 lists
        value = [value, value]
    assert "more than 1000 lists" in refused(value)


@pytest.mark.parametrize(
    "items",
    [
        [0.5, float("inf"), -0.0, 1e300] * 5,
        [0, -1, 2**63 - 1, -(2**63)] * 5,
        [0, 2**63] * 5,
        [True, 1] * 5,
        [1.0, 1] * 5,
        ["a", "", "é"] * 5,
        [np.float64(1.5)] * 9,
    ],
    ids=repr,
)
def test_lists_of_one_type_keep_every_item(items):
    found = back(items)
    assert found == items
    assert [type(each) for each in found] == [type(each) for each in items]
    assert back(tuple(items)) == tuple(items)


class Rider:
    def __init__(self, number, array=None):
        self.number = number
        self.array = array


class Rail:
    """A passenger whose arrays go along, and that lets some values go by themselves."""

    handles = Rider

    def __init__(self):
        self.ends = []
        self.declined = []

    def depart(self, value, journey):
        if value.number < 0:
            return None
        journey.on_outcome(lambda outcome: self.ends.append((value.number, outcome)))
        if value.array is not None:
            journey.luggage.append(value.array)
        return str(value.number).encode()

    def arrive(self, data, journey):
        if data == b"13":
            raise WireError("no seat 13")
        assert not journey.outgoing
        journey.notes.setdefault("rider", []).append(int(data))
        return Rider(int(data), *journey.luggage)

    def decline(self, data, journey):
        self.declined.append(data)


@pytest.fixture
def rail():
    rail = Rail()
    journeys.carry("rider", rail)
    yield rail
    journeys.put_down("rider")


def test_passengers_depart_and_arrive(rail):
    outgoing, incoming = Journey(), Journey(outgoing=False)
    array = np.arange(1000.0)
    value = [Rider(1), {"x": Rider(2, array)}, Rider(3, [Rider(4), Rider(5, "bag")])]
    message = encode(value, outgoing)
    found = decode(message, outgoing.parts, incoming)
    assert [found[0].number, found[1]["x"].number, found[2].number] == [1, 2, 3]
    np.testing.assert_array_equal(found[1]["x"].array, array)
    inner = found[2].array
    assert [rider.number for rider in inner] == [4, 5] and inner[1].array == "bag" and inner[0].array is None
    assert sorted(incoming.notes["rider"]) == [1, 2, 3, 4, 5]
    assert not rail.ends
    outgoing.end(Outcome.ANSWERED)
    assert sorted(rail.ends) == [(n, Outcome.ANSWERED) for n in range(1, 6)]
    assert outgoing.luggage == incoming.luggage == []


def test_passengers_stay_if_the_rest_cannot_travel(rail):
    journey = Journey()
    with pytest.raises(CannotTravel):
        encode([Rider(1), Thing()], journey)
    assert rail.ends == [(1, Outcome.REFUSED)]


def test_a_passenger_may_leave_a_value_to_itself(rail):
    with pytest.raises(CannotTravel, match="Rider can't travel"):
        encode(Rider(-1), Journey())


def test_what_a_passenger_says_reaches_the_caller(rail):
    message = encode(Rider(13), Journey())
    with pytest.raises(WireError, match="no seat 13"):
        decode(message, [], Journey(outgoing=False))
    assert rail.declined == [b"13"]
    message = encode(Rider(1), Journey())
    journeys.put_down("rider")
    with pytest.raises(WireError, match="nothing here takes values of kind 'rider'"):
        decode(message, [], Journey(outgoing=False))


def test_two_values_share_the_parts_of_a_frame():
    journey = Journey()
    first, second = np.arange(50_000.0), np.arange(60_000.0)
    one, two = encode({"a": first}, journey), encode([second, 3], journey)
    assert len(journey.parts) == 2 and two.first_part == 1
    incoming = Journey(outgoing=False)
    np.testing.assert_array_equal(decode(two, journey.parts, incoming)[0], second)
    np.testing.assert_array_equal(decode(one, journey.parts, incoming)["a"], first)


def test_a_key_with_more_digits_than_python_writes():
    assert refused({10**5000: Thing()}).startswith("value[...]: ")
