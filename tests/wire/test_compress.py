"""Narrower dtypes on the wire, and back."""

import ml_dtypes
import numpy as np
import pytest

from psframework.errors import ArgumentError, ConfigurationError, WireError
from psframework.wire.compress import Compression, narrow, parse, widen, wire_dtype
from psframework.wire.spec import Layout, as_bytes

VALUES = np.array([0.0, -1.5, 3.14159, 1e-30, 60_000.0, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("method", [Compression.FP16, Compression.BF16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4"])
def test_values_come_back_rounded_to_nearest_even(method, dtype):
    array = VALUES.astype(dtype)
    small = narrow(array, method)
    assert small.dtype.itemsize == 2
    arrived = Layout.of(small).array(bytes(as_bytes(small)))
    back = widen(arrived, np.dtype(dtype).newbyteorder("="))
    np.testing.assert_array_equal(back, array.astype(np.float32).astype(small.dtype).astype(dtype))
    np.testing.assert_allclose(back[:3], array[:3], rtol=1 / 128)


def test_other_arrays_stay_as_they_are():
    for array in (
        np.arange(3),
        np.ones(3, np.complex64),
        np.ones(3, np.float16),
        np.ones(3, ml_dtypes.bfloat16),
    ):
        for method in Compression:
            assert narrow(array, method) is array
    array = np.ones(3, np.float32)
    assert narrow(array, Compression.NONE) is array
    assert widen(array, array.dtype) is array


def test_values_out_of_range_are_named():
    with pytest.raises(ArgumentError, match="beyond the range of fp16"):
        narrow(np.array([1e5], np.float32), Compression.FP16)
    with pytest.raises(ArgumentError, match="beyond the range of bf16"):
        narrow(np.array([1e300]), Compression.BF16)
    assert np.isfinite(narrow(np.array([1e30], np.float32), Compression.BF16).astype(np.float32)).all()


def test_widen_into_a_buffer():
    out = np.empty(3, np.float32)
    assert widen(np.ones(3, np.float16), out.dtype, out) is out
    assert out.tolist() == [1, 1, 1]
    with pytest.raises(WireError, match=r"float32\[3\] was expected"):
        widen(np.ones(4, np.float16), out.dtype, out)


@pytest.mark.parametrize("array", [np.ones(2), np.ones(2, np.int16), np.ones(2, np.uint16)])
def test_widening_from_anything_else_is_refused(array):
    with pytest.raises(WireError, match="float32 was expected"):
        widen(array, np.dtype(np.float32))


def test_names():
    assert parse(" BF16 ") is Compression.BF16
    assert wire_dtype(np.dtype(np.float32), parse("fp16")) == np.float16
    with pytest.raises(ConfigurationError, match="none, fp16, bf16"):
        parse("zip")
