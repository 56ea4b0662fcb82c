"""What each type is written as, and what is refused."""

import datetime

import ml_dtypes
import numpy as np
import pytest

from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import kinds
from psframework.rpc.values.arguments import CannotTravel, decode, encode
from psframework.rpc.values.journey import Journey


def test_the_example_of_the_protocol():
    message = encode((1, [2.5, "a"]), Journey())
    assert message == Value(
        outline=bytes(
            [kinds.TUPLE, 2, kinds.INTEGER, kinds.LIST, 2, kinds.REAL, kinds.TEXT],
        ),
        integers=[1],
        reals=[2.5],
        texts=["a"],
    )


def test_small_arrays_are_inside_and_large_ones_are_parts():
    journey = Journey()
    small, large = np.zeros(kinds.ROOM // 2, "u1"), np.zeros(kinds.ROOM + 1, "u1")
    message = encode([small, large, small], journey)
    assert [len(blob) for blob in message.blobs] == [32768, 32768]
    assert [part.nbytes for part in journey.parts] == [65537]
    assert np.shares_memory(np.frombuffer(journey.parts[0], "u1"), large), (
        "a view: who sends it copies it once"
    )


def test_small_arrays_are_inside_only_while_there_is_room():
    journey = Journey()
    arrays = [np.full(16384, index, "u1") for index in range(6)] + [np.zeros(kinds.INLINE, "u1")]
    message = encode(arrays, journey)
    assert [len(blob) for blob in message.blobs] == [16384] * 4 + [kinds.INLINE]
    assert [part.nbytes for part in journey.parts] == [16384] * 2
    back = decode(message, journey.parts, Journey(outgoing=False))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))


def test_many_tiny_arrays_need_no_part_each():
    journey = Journey()
    message = encode([np.arange(8.0) for _ in range(1000)], journey)
    assert not journey.parts and message.ByteSize() < 1000 * (64 + 8)


def test_a_view_ships_its_own_elements_only():
    journey = Journey()
    whole = np.zeros((10_000, 9))
    encode(whole[:6000], journey)
    encode(whole[:, 0][:50], journey)
    encode(whole[::2, ::3], journey)
    assert [part.nbytes for part in journey.parts] == [6000 * 9 * 8, 5000 * 3 * 8]
    message = encode(np.zeros((1000, 1000))[:2, :2], Journey())
    assert message.ByteSize() < 64


def test_long_texts_and_bytes_are_parts():
    journey = Journey()
    message = encode(["a" * 5000, b"b" * 5000, bytearray(5000), 1 << 50_000], journey)
    assert message.ByteSize() < 64 and [len(part) for part in journey.parts] == [5000, 5000, 5000, 6251]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([object()]), "array of object"),
        (np.array(["text"]), "array of <U4"),
        (np.array(["2026-11-30"], "M8[D]"), r"array of datetime64\[D\]"),
        (np.zeros(2, [("a", "f4")]), r"array of \["),
        (np.array([1, 2], ml_dtypes.float8_e5m2), "float8"),
        (np.ma.array([1, 2], mask=[0, 1]), r"MaskedArray.*numpy\.asarray"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_refused_with_the_reason(value, reason):
    with pytest.raises(CannotTravel, match=reason):
        encode(value, Journey())


def test_zones_of_other_classes_are_refused():
    class Odd(datetime.tzinfo):
        pass

    with pytest.raises(CannotTravel, match=r"Odd can't travel"):
        encode(datetime.datetime(2026, 1, 1, tzinfo=Odd()), Journey())
