"""Targets of classification as places in a table."""

import numpy as np
import pytest

from psframework.autograd.ops.labels import from_rows, in_range, to_rows, weighted_targets


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (0, 3), (2, 3, 0)])
def test_rows_and_back(shape):
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rows = to_rows(data)
    assert rows.shape[1] == 3 and rows.flags.c_contiguous
    np.testing.assert_array_equal(from_rows(rows, shape, np.float64), data)
    if len(shape) == 3 and data.size:
        np.testing.assert_array_equal(rows[5], data[1, :, 1])


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64])
def test_range(dtype):
    assert in_range(np.array([0, 4], dtype), 5) and in_range(np.array([], dtype), 0)
    assert not in_range(np.array([0, 5], dtype), 5)
    assert dtype(0).dtype.kind == "u" or not in_range(np.array([-1, 4], dtype), 5)


def test_weights_and_what_does_not_count():
    rows = np.zeros((4, 3))
    targets = weighted_targets("f", np.array([2, -1, 0, 2]), rows, np.array([1.0, 2.0, 5.0]), -1)
    assert targets.places.tolist() == [2, 3, 6, 11]
    assert targets.weights.tolist() == [5, 0, 1, 5] and targets.total == targets.divisor == 11
    nothing = weighted_targets("f", np.full(4, -1), rows, None, -1)
    assert nothing.total == 0 and nothing.divisor == 1 and not nothing.valid.any()
