"""Sums of rows that belong together, against loops."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.autograd.segments import group, sum_segments
from psframework.testing.strict_device import strict_devices


@given(st.lists(st.integers(0, 9), max_size=30), st.sampled_from([10, 1 << 20]))
def test_groups(keys, limit):
    keys = np.array(keys, np.int64)
    order, starts, sizes = group(keys, limit)
    np.testing.assert_array_equal(sizes, np.unique(keys, return_counts=True)[1])
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(keys[order[starts]], np.unique(keys))


@pytest.mark.parametrize(
    "sizes", [[], [0], [0, 3, 0, 1, 2, 0], [5], [64, 65, 1], [70, 0, 200, 64, 3], [1, 1]]
)
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2)])
def test_sums(sizes, shape):
    rng = np.random.default_rng(len(sizes))
    values, sizes = rng.standard_normal(shape), np.array(sizes, np.int64)
    picks = rng.integers(0, 7, sizes.sum())
    ends = np.cumsum(sizes)
    expected = [values[picks[end - size : end]].sum(0) for size, end in zip(sizes, ends)]
    found = sum_segments(values, picks, sizes)
    np.testing.assert_allclose(found, np.reshape(expected, (len(sizes), *shape[1:])))
    with strict_devices("gpu-0") as [device]:
        there = sum_segments(*(device.to_device(array) for array in (values, picks, sizes)))
        np.testing.assert_allclose(device.asnumpy(there), found)


@pytest.mark.parametrize("count", [40, 400])
def test_16_bits_are_summed_in_float32(count):
    values = np.full((1, 2), 1.125, ml_dtypes.bfloat16)
    sums = sum_segments(values, np.zeros(count, int), np.array([count]))
    assert sums.dtype == np.float32 and sums.tolist() == [[1.125 * count] * 2]
