"""Arrays as bytes and specs, for every dtype and memory order, and specs that lie."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psframework.errors import ArgumentError, WireError
from psframework.proto.v1.tensor_pb2 import ArraySpec
from psframework.wire import spec
from psframework.wire.spec import Layout


def travel(array, max_bytes=1 << 20):
    """What arrives: the spec and the bytes serialised and read back."""
    message = ArraySpec.FromString(Layout.of(array).to_message().SerializeToString())
    return Layout.from_message(message, max_bytes=max_bytes).array(bytes(spec.as_bytes(array)))


def same(left, right):
    assert left.dtype == right.dtype.newbyteorder("=")
    assert left.shape == right.shape
    assert left.tobytes() == right.astype(left.dtype).tobytes()


INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = ["bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
BASE = np.arange(2 * 3 * 4).reshape(2, 3, 4)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_travels(name):
    same(travel(BASE.astype(spec.dtype_named(name))), BASE.astype(spec.dtype_named(name)))


@pytest.mark.parametrize(
    "array",
    [
        BASE[:, ::2, 1],
        BASE[::-1],
        BASE.T,
        np.asfortranarray(BASE.astype(np.float32)),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.array(2.5, np.float16),
        np.zeros((3, 0, 2), np.float32),
        np.array([], np.complex64),
        np.array([1.5, -2], ">f8"),
        np.array([1 + 2j], ">c16"),
        np.array(7, ">i4"),
        np.array([True, False, True])[::2],
        np.array([1, np.nan, np.inf], ml_dtypes.bfloat16),
        BASE.astype(ml_dtypes.bfloat16)[:, ::2],
        np.array(1.0, ml_dtypes.bfloat16),
        np.zeros((100, 9), np.float32)[:60],
    ],
    ids=lambda array: f"{array.dtype.name}{array.strides}",
)
def test_any_order_arrives_as_its_own_values(array):
    same(travel(array), array)


@given(hnp.arrays(hnp.scalar_dtypes().filter(lambda d: d.name in DTYPES), hnp.array_shapes(min_dims=0)))
def test_random_arrays_arrive(array):
    same(travel(array), array)
    same(travel(array.T), array.T)


def test_a_view_sends_its_own_bytes_only():
    assert spec.as_bytes(np.zeros((100, 9), np.float32)[:60]).nbytes == 60 * 9 * 4
    assert spec.as_bytes(np.zeros((100, 9), np.float32)[:, 0]).nbytes == 100 * 4


def test_contiguous_arrays_are_not_copied():
    array = np.zeros((4, 4), np.float32)
    view = spec.as_bytes(array)
    array[0, 0] = 1.0
    assert bytes(view[:4]) == np.float32(1).tobytes()
    back = Layout.of(array).array(view)
    assert np.shares_memory(back, array)
    assert back.flags.writeable
    assert not Layout.of(array).array(bytes(view)).flags.writeable


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.zeros(2, "i4,f4"), np.zeros(2, "M8[s]")]
)
def test_other_dtypes_are_the_callers_mistake(array):
    with pytest.raises(ArgumentError, match="is not supported"):
        Layout.of(array)
    with pytest.raises(ArgumentError, match="is not supported"):
        spec.as_bytes(array)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ArraySpec(dtype="float32", shape=[10 << 30]), "larger than"),
        (ArraySpec(dtype="float32", shape=[1 << 32, 1 << 32]), "larger than"),
        (ArraySpec(dtype="float32", shape=[2**64 - 1] * 32), "larger than"),
        (ArraySpec(dtype="float32", shape=[2**63, 0]), "larger than"),
        (ArraySpec(dtype="float32", shape=[1] * 33), "33 axes"),
        (ArraySpec(dtype="object", shape=[1]), "is not supported"),
        (ArraySpec(dtype="<f4", shape=[1]), "is not supported"),
        (ArraySpec(dtype="", shape=[1]), "is not supported"),
        (ArraySpec(dtype="x" * 100_000, shape=[1]), "is not supported"),
    ],
)
def test_specs_that_lie_are_refused(message, words):
    with pytest.raises(WireError, match=words) as caught:
        Layout.from_message(message)
    assert len(str(caught.value)) < 2000


def test_negative_axes_are_refused():
    with pytest.raises(WireError):
        Layout.checked("float32", (-1, -4))


@given(st.sampled_from([*DTYPES, "object", "V8"]), st.lists(st.integers(0, 2**64 - 1), max_size=40))
def test_any_spec_is_checked_or_refused(dtype, shape):
    try:
        layout = Layout.from_message(ArraySpec(dtype=dtype, shape=shape), max_bytes=1 << 16)
    except WireError:
        return
    assert layout.nbytes <= 1 << 16
    assert layout.array(bytes(layout.nbytes)).shape == tuple(shape)


@pytest.mark.parametrize("wrong", [0, 15, 17])
def test_bytes_of_another_length_are_refused(wrong):
    with pytest.raises(WireError, match=r"float32\[2, 2\]"):
        Layout.checked("float32", (2, 2)).array(bytes(wrong))


def test_sizes_over_2_gib_are_exact():
    layout = Layout.checked("uint8", (2_254_857_831,))
    assert layout.nbytes == 2_254_857_831
    assert Layout.checked("float64", (3, 1 << 27)).nbytes == 3 << 30
    assert Layout.from_message(layout.to_message()) == layout


def test_layout_of_a_scalar():
    layout = Layout.of(np.array(1.0))
    assert (layout.shape, layout.size, layout.nbytes) == ((), 1, 8)
    assert math.prod(layout.shape) == 1
