"""Values there and back, of all kinds; and what arbitrary bytes do: a WireError, or a value."""

import datetime
import enum
import os
import random
import tracemalloc
import zoneinfo
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import psframework as psf
import psframework.nn.functional as F
from psframework import nn
from psframework.errors import PsfError, WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.values import kinds
from psframework.rpc.values.arguments import CannotTravel, decode, decode_call, encode, encode_call
from psframework.rpc.values.journey import Journey

SOAK = bool(os.environ.get("PSF_SOAK"))
DTYPES = list(kinds.DTYPES.values())


@psf.register_type
@dataclass(frozen=True)
class Item:
    key: object
    value: object = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@psf.remote
class Small(nn.Module):
    def __init__(self, size):
        super().__init__()
        if not isinstance(size, int) or not 0 < size < 64:
            raise ValueError("size")
        self.w = nn.Parameter(np.ones(size, "f4"))


def over_the_wire(value, **options):
    """Encoded, serialised, parsed and decoded; parts lie in memory that may not be written."""
    journey = Journey()
    message = Value.FromString(encode(value, journey).SerializeToString())
    parts = [memoryview(bytes(part)) for part in journey.parts]
    return decode(message, parts, Journey(outgoing=False), **options)


def same(a, b):
    """Equal in types, values, dtypes and shapes; NaN equals NaN, and -0.0 not 0.0."""
    return canonical(a) == canonical(b)


def canonical(value):
    """A text that only equal values have."""
    kind = type(value).__name__
    match value:
        case np.ndarray() | np.generic():
            return f"{kind} {value.dtype} {value.shape} {value.tobytes()!r}"
        case list() | tuple():
            return f"{kind} {[canonical(each) for each in value]}"
        case dict():
            return f"{kind} {[canonical(each) for each in value.items()]}"
        case set() | frozenset():
            return f"{kind} {sorted(canonical(each) for each in value)}"
        case Item():
            return f"{kind} {canonical((value.key, value.value))}"
        case datetime.datetime() | datetime.time():
            return f"{value!r} {value.fold}"
    return f"{kind} {value!r}"


# Deferred, because hypothesis would write out what each consists of.
ZONES = st.deferred(
    lambda: (
        st.none()
        | st.sampled_from([datetime.UTC, zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("Europe/Berlin")])
        | st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)).map(datetime.timezone)
    )
)
NAMED = [..., Colour.RED, Colour.BLUE, range(3), range(5, -5, -2), np.float32, float, F.relu, nn.Linear]
KEYS = st.deferred(
    lambda: st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.complex_numbers(),
        st.text(),
        st.text(st.characters(categories=["Cs", "L"])),
        st.binary(),
        st.dates(),
        st.times(timezones=st.none() | st.just(datetime.UTC)),
        st.datetimes(timezones=ZONES),
        st.timedeltas(),
        st.sampled_from(NAMED),
    )
)
NATIVE = st.sampled_from(DTYPES[:-1])
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
LEAVES = st.deferred(
    lambda: st.one_of(
        KEYS,
        NATIVE.flatmap(npst.from_dtype),
        npst.arrays(NATIVE, SHAPES),
        st.binary().map(bytearray),
        st.builds(slice, st.integers(), st.none(), st.integers()),
    )
)
HASHABLE = st.deferred(
    lambda: st.one_of(KEYS, st.tuples(KEYS, KEYS), st.frozensets(KEYS, max_size=3), st.builds(Item, KEYS))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=12),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.builds(Item, inner, inner),
    ),
    max_leaves=20,
)


@settings(max_examples=3000 if SOAK else 300)
@given(VALUES)
def test_values_arrive_equal(value):
    assert same(over_the_wire(value), value)


@pytest.mark.parametrize("bits", [0, 1, 7, 8, 62, 63, 64, 65, 127, 128, 4000, 100_000])
def test_integers_of_any_size(bits):
    for value in (1 << bits, -(1 << bits), (1 << bits) - 1, -(1 << bits) - 1, (1 << bits) + 1):
        assert over_the_wire(value) == value


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [5, 40], ids=["inline", "part"])
def test_every_dtype_and_layout_arrives_equal(dtype, size):
    rng = np.random.default_rng(0)
    base = (rng.standard_normal((size, size, 4)) * 10).astype(dtype)
    layouts = {
        "whole": base,
        "0-d": base[0, 0, 0][...],
        "empty": base[:0],
        "empty in the middle": base[:, :0],
        "strided": base[::2, :, 1],
        "negative": base[::-1, ::-2],
        "Fortran": np.asfortranarray(base),
        "transposed": base.T,
        "broadcast": np.broadcast_to(base[0, 0], (size, 4)),
        "swapped": base.astype(dtype.newbyteorder(">")) if dtype != ml_dtypes.bfloat16 else base,
        "many axes": base[0, 0].reshape((2,) + (1,) * 62 + (2,)),
        "read-only": base.view(),
    }
    layouts["read-only"].flags.writeable = False
    for name, array in layouts.items():
        for options in ({}, {"views": False}):
            found = over_the_wire(array, **options)
            assert type(found) is np.ndarray and found.dtype == dtype and found.shape == array.shape, name
            assert found.flags.c_contiguous
            np.testing.assert_array_equal(found, array, err_msg=name)
            assert found.flags.writeable
    scalar = base[0, 0, 0]
    assert same(over_the_wire(scalar), scalar) and type(over_the_wire(dtype)) is type(dtype)
    assert over_the_wire(dtype) == dtype and over_the_wire(dtype.type) is dtype.type


def test_a_file_in_memory_arrives_as_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "numbers", "f4", "w+", shape=(3, 400))
    mapped[:] = 7
    found = over_the_wire([mapped, mapped[1, :5]])
    assert [type(each) for each in found] == [np.ndarray] * 2 and found[0].tolist() == mapped.tolist()


def test_only_large_arrays_arrive_as_views():
    small, large = np.zeros(kinds.COPIED // 8), np.zeros(kinds.COPIED // 8 + 1)
    journey = Journey()
    message = encode([small, large], journey)
    assert np.shares_memory(np.frombuffer(journey.parts[1], "u1"), large), "no copy on the way out"
    buffers = [bytearray(part) for part in journey.parts]
    one, two = decode(message, buffers, Journey())
    assert one.flags.writeable and not np.shares_memory(one, np.frombuffer(buffers[0], "u1"))
    assert not two.flags.writeable and np.shares_memory(two, np.frombuffer(buffers[1], "u1"))
    for array in decode(message, buffers, Journey(), views=False):
        array += 1
    assert not any(buffers[1])


def test_tensors_arrive_as_constants_and_parameters_as_parameters():
    x = psf.tensor([1.0, 2.0], requires_grad=True)
    found = over_the_wire({"leaf": x, "graph": x * 2, "ints": psf.tensor([1, 2])})
    assert all(type(t) is psf.Tensor and not t.requires_grad for t in found.values())
    assert found["graph"].data.tolist() == [2.0, 4.0] and found["ints"].data.dtype == np.int64
    w, frozen = over_the_wire([nn.Parameter(np.ones(2)), nn.Parameter(np.ones((600, 600)), False)])
    assert type(w) is nn.Parameter and w.requires_grad and not frozen.requires_grad
    assert frozen.data.flags.writeable


def test_sparse_gradients_arrive():
    rows = psf.SparseRows(np.array([1, 3]), np.ones((2, 4), "f4"), (10, 4))
    found = over_the_wire(rows)
    np.testing.assert_array_equal(found.to_dense(), rows.to_dense())
    assert found.shape == (10, 4)


def test_generators_go_on_where_they_were():
    rng = np.random.default_rng(3)
    rng.random(5, dtype="f4")
    found = over_the_wire(rng)
    assert found.random(4).tolist() == rng.random(4).tolist()


def test_zones_and_folds():
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    first = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    for fold in (0, 1):
        found = over_the_wire(first.replace(fold=fold))
        assert (found.fold, found.utcoffset()) == (fold, first.replace(fold=fold).utcoffset())
        assert found.tzinfo is berlin
    named = datetime.timezone(datetime.timedelta(hours=2), "HERE")
    assert over_the_wire(datetime.time(1, 2, 3, 4, named)).tzname() == "HERE"
    assert over_the_wire(datetime.UTC) is datetime.UTC


def test_memory_of_the_caller_arrives_as_bytes():
    assert over_the_wire(memoryview(b"abcdef")[::2]) == b"ace"


def test_calls():
    @given(st.lists(KEYS, max_size=4), st.dictionaries(st.text(), KEYS, max_size=4))
    @settings(max_examples=50)
    def check(args, kwargs):
        journey = Journey()
        found = decode_call(encode_call(args, kwargs, journey), journey.parts, Journey(outgoing=False))
        assert same(found, (tuple(args), kwargs))

    check()
    assert decode_call(encode_call((), None, Journey()), [], Journey()) == ((), {})


def test_what_is_too_large_for_one_message_says_so(monkeypatch):
    monkeypatch.setattr("psframework.rpc.values.arguments.MAX_HEADER", 10_000)
    with pytest.raises(CannotTravel, match="send long lists as arrays"):
        encode([0.5] * 5000, Journey())
    monkeypatch.setattr("psframework.rpc.values.arguments.MAX_PARTS", 10)
    with pytest.raises(CannotTravel, match="stack them"):
        encode([None] * 5000 + [np.zeros(20_000)] * 11, Journey())


# Arbitrary messages


def seeds():
    journey = Journey()
    values = [
        (1, 2.5, "text", b"bytes", None, True, 1 << 80, 1j, [], {}, {1, 2}, frozenset([3])),
        {"a": [np.arange(6.0).reshape(2, 3), np.float32(2)], ("k", 1): {"deep": [[[[[]]]]]}},
        [
            datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC),
            datetime.date(2026, 1, 1),
            datetime.timedelta(3),
        ],
        [psf.tensor([1.0]), nn.Parameter(np.ones(2)), Item(1, Colour.RED), nn.ReLU(), F.relu, np.dtype("f4")],
        [Small(3), nn.Sequential(nn.ReLU(), Small(2)), slice(1, 2), range(3), ..., np.random.default_rng(1)],
        [nn.Linear(3, 4), nn.GRU(2, 3, 2), nn.RotaryEmbedding(4, 9), nn.LayerNorm((2, 3)).half()],
        nn.TransformerEncoder(nn.TransformerEncoderLayer(2, 1, 3), 2),
        [float(i) for i in range(20)] + list(range(20)) + ["x"] * 20,
        [np.zeros(300), "a" * 2000, b"b" * 2000, psf.SparseRows(np.array([1]), np.ones((1, 2)), (3, 2))],
    ]
    return [encode(value, journey).SerializeToString() for value in values], [bytes(p) for p in journey.parts]


def mutated(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 33)]
    return bytes(data)


def attempt(message, parts):
    """Decodes; whether it is a value. Anything but a value or a WireError is a failure of the test."""
    try:
        decode(message, parts, Journey(outgoing=False))
    except WireError:
        return False
    return True


def arbitrary(count, seed):
    rng = random.Random(seed)
    valid, parts = seeds()
    assert all(attempt(Value.FromString(data), parts) for data in valid)
    for i in range(count):
        if i % 4:
            data = mutated(rng.choice(valid), rng)
            try:
                message = Value.FromString(data)
            except Exception:  # not even a message
                continue
        else:
            message = Value(
                outline=bytes(rng.choices(range(64), k=rng.randrange(1, 60))),
                integers=[rng.getrandbits(63) for _ in range(9)],
                reals=[rng.random() for _ in range(9)],
                texts=rng.choices(
                    [
                        "x",
                        "psframework.nn.ReLU",
                        "psframework.nn.Linear",
                        "cpu",
                        "2026-11-30",
                        "UTC",
                        f"{__name__}.Colour",
                    ],
                    k=9,
                ),
                blobs=[rng.randbytes(rng.choice((0, 1, 4, 8, 16))) for _ in range(9)],
            )
        yield message, parts


def fuzz(count, seed):
    values = sum(attempt(message, parts) for message, parts in arbitrary(count, seed))
    assert 0 < values < count


def test_arbitrary_messages_are_refused_or_read():
    fuzz(10_000, seed=4)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_many_arbitrary_messages():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    fuzz(100_000, seed)


def test_memory_is_bounded_by_the_message():
    messages = list(arbitrary(1000, seed=7))
    for message, parts in messages[:50]:
        attempt(message, parts)  # caches, imports
    tracemalloc.start()
    try:
        for message, parts in messages:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            attempt(message, parts)
            peak = tracemalloc.get_traced_memory()[1] - before
            size = message.ByteSize() + sum(map(len, parts))
            assert peak < 200_000 + 40 * size, f"{peak} bytes for {size}: {message!r}"
    finally:
        tracemalloc.stop()


def test_every_error_is_one_of_ours():
    assert issubclass(CannotTravel, PsfError) and issubclass(WireError, PsfError)
