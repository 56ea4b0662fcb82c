"""Messages that are no values: counts, ends, limits."""

import time

import numpy as np
import pytest

from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import kinds as k
from psframework.rpc.values.arguments import decode, decode_call, encode
from psframework.rpc.values.journey import Journey

END = bytes([0x80] * 9)


def read(outline, parts=(), **columns):
    return decode(Value(outline=bytes(outline), **columns), parts, Journey(outgoing=False))


@pytest.mark.parametrize(
    "outline",
    [
        [],
        [0],
        [200],
        [k.LIST],
        [k.LIST, 2, k.NONE],
        [k.NONE, k.NONE],
        [k.LIST, 1, k.NONE, k.NONE],
        [k.LIST, *END, 1],
        [k.LIST, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
        [k.DICT, 1, k.NONE],
        [k.DICT, 0x80, 0x80],
        [k.INTEGER],
        [k.TEXT],
        [k.REAL],
        [k.COMPLEX],
        [k.BYTES],
        [k.PART],
        [k.PART, k.LIST],
        [k.PART, k.BYTES],
        [k.LIST, 9, *[k.REAL] * 9],
    ],
    ids=str,
)
def test_outlines_that_do_not_hold(outline):
    with pytest.raises(WireError):
        read(outline)


def test_a_count_is_compared_before_anything_is_made():
    started = time.monotonic()
    for kind in (k.LIST, k.TUPLE, k.SET, k.FROZENSET, k.DICT):
        with pytest.raises(WireError, match="items where"):
            read([kind, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, k.NONE])
    assert time.monotonic() - started < 5


def test_depth_and_number_of_containers_are_bounded(monkeypatch):
    with pytest.raises(WireError, match="deeper than 100"):
        read([k.LIST, 1] * 100_000 + [k.NONE])
    with pytest.raises(WireError):
        read([k.SLICE] * 1000)
    with pytest.raises(WireError):
        read([k.TENSOR] * 10_000)
    with pytest.raises(WireError):
        read([k.ON_DEVICE] * 10_000, texts=["cpu"] * 10_000)
    with pytest.raises(WireError):
        read([k.PART] * 10_000)
    monkeypatch.setattr("psframework.rpc.values.decoder.MAX_CONTAINERS", 100)
    with pytest.raises(WireError, match="over 100 containers"):
        read([k.LIST, 100, *[k.SET, 0] * 100])
    assert read([k.LIST, 99, *[k.SET, 0] * 99]) == [set()] * 99


def test_parts_are_counted_from_the_first_one_of_the_value():
    journey = Journey()
    journey.parts.append(b"of another value")
    message = encode([b"x" * 2000, b"y" * 3000], journey)
    assert decode(message, journey.parts, Journey()) == [b"x" * 2000, b"y" * 3000]
    with pytest.raises(WireError, match="part 2 of a value, but its frame has 2"):
        decode(message, journey.parts[:2], Journey())
    message.first_part = 2**32 - 1
    with pytest.raises(WireError, match="part"):
        decode(message, journey.parts, Journey())


def test_a_call_is_a_tuple_and_named_arguments():
    assert decode_call(encode(((1,), {"a": 2}), Journey()), [], Journey()) == ((1,), {"a": 2})
    for value in (1, (1, {}), ((), []), ((), {1: 2}), ((), {}, 3), [(), {}]):
        with pytest.raises(WireError, match="arguments of a call"):
            decode_call(encode(value, Journey()), [], Journey())


def test_numbers_of_several_bytes():
    array = np.zeros((3, 0, 200, 70_000), "f4")
    message = encode(array, Journey())
    assert decode(message, [], Journey()).shape == array.shape
