"""Values as bytes: what comes back, and what is refused."""

import numpy as np
import pytest

from psframework.backend import bfloat16
from psframework.collective.objects import pack, unpack
from psframework.errors import WireError

VALUES = [
    None,
    {"a": [1, 2.5, "three", b"four", None, (True, 1 << 80)]},
    np.float32(2.5),
    np.arange(5, dtype=np.int8),
    [np.zeros((0, 3)), np.array(2 + 3j), np.ones(3, bfloat16)],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_comes_back(value):
    got = unpack(pack(value))
    np.testing.assert_equal(got, value)
    assert type(got) is type(value)


@pytest.mark.parametrize("views", [True, False])
def test_large_arrays_are_aligned_parts(views):
    arrays = [np.random.default_rng(i).standard_normal(150_001 + i) for i in range(3)]
    flat = pack(["odd text", *arrays])
    got = unpack(flat, views=views)
    for mine, its in zip(arrays, got[1:], strict=True):
        np.testing.assert_array_equal(its, mine)
        assert its.flags.aligned
        assert np.shares_memory(its, flat) == views


def test_bytes_that_follow_do_not_matter():
    flat = pack({"x": np.ones(20_000)})
    padded = np.zeros(len(flat) + 1000, np.uint8)
    padded[: len(flat)] = flat
    np.testing.assert_array_equal(unpack(padded)["x"], np.ones(20_000))


def test_what_cannot_travel_is_named():
    with pytest.raises(TypeError, match=r"\['f'\].*function"):
        pack({"f": lambda: None})


@pytest.mark.parametrize("cut", [0, 3, 11, 40])
def test_cut_short(cut):
    with pytest.raises(WireError):
        unpack(pack({"x": np.ones(20_000)})[:cut])


def test_any_damage_is_a_wire_error_or_another_value():
    rng = np.random.default_rng(0)
    good = pack({"x": list(range(20)), "y": "text"})
    for _ in range(500):
        bad = good.copy()
        bad[rng.integers(len(bad))] = rng.integers(256)
        try:
            unpack(bad)
        except WireError:
            pass
