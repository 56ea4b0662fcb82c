"""Targets of classification as places in a table."""

import numpy as np
import pytest

from psframework.autograd.ops.labels import in_range, to_table, weighted_targets


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3,), (1, 3, 1)),
        ((2, 3), (2, 3, 1)),
        ((2, 3, 4, 5), (2, 3, 20)),
        ((0, 3), (0, 3, 1)),
        ((2, 3, 0), (2, 3, 0)),
    ],
)
def test_tables(shape, expected):
    data = np.arange(np.prod(shape), dtype=np.float16).reshape(shape)
    table = to_table(data)
    assert table.shape == expected and table.dtype == np.float32 and table.flags.c_contiguous
    np.testing.assert_array_equal(table.reshape(shape), data)
    assert to_table(np.ones((2, 3)).T).flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64])
def test_range(dtype):
    assert in_range(np.array([0, 4], dtype), 5) and in_range(np.array([], dtype), 0)
    assert not in_range(np.array([0, 5], dtype), 5)
    assert dtype(0).dtype.kind == "u" or not in_range(np.array([-1, 4], dtype), 5)
    assert dtype(0).dtype.kind == "u" or not in_range(np.array([-1, 4], dtype), 1 << 40)


def test_range_of_another_byte_order():
    assert in_range(np.array([0, 4], ">i8"), 5) and not in_range(np.array([0, -4], ">i8"), 5)


def test_weights_and_what_does_not_count():
    table = np.zeros((2, 3, 2))
    labels = np.array([[2, -1], [0, 2]])
    targets = weighted_targets("f", labels, table, np.array([1.0, 2.0, 5.0]), -1)
    assert targets.positions.tolist() == [[4, 1], [6, 11]]
    assert targets.weights.tolist() == [[5, 0], [1, 5]] and targets.total == targets.divisor == 11
    nothing = weighted_targets("f", np.full((2, 2), -1), table, None, -1)
    assert nothing.total == 0 and nothing.divisor == 1 and not nothing.valid.any()
