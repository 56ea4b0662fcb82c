import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError, AutogradError

rng = np.random.default_rng(8)
X, WIDE = rng.standard_normal((3, 4)), rng.standard_normal((5, 6))
ALONG = np.array([[3, 0], [1, 1], [0, 2]])
AGAIN = np.array([0, 2, 0, -1, 0])


def test_take_as_numpy():
    for indices, axis in ((AGAIN, 0), (AGAIN, None), (2, 1), ([[0, 1], [1, -1]], -1), ([], 0)):
        ours = ops.take(X, indices, axis)
        np.testing.assert_array_equal(ours.data, np.take(X, np.asarray(indices, np.int64), axis))


def test_along_an_axis_as_numpy():
    order = X.argsort(0)
    np.testing.assert_array_equal(ops.take_along_axis(X, order, 0).data, np.sort(X, 0))
    np.testing.assert_array_equal(
        ops.take_along_axis(X, AGAIN[:2], None).data, np.take_along_axis(X, AGAIN[:2], None)
    )
    for values, axis in ((WIDE[:3, :2], 1), (7.0, 1), (X.reshape(-1)[:5], None)):
        places = ALONG if axis else AGAIN
        expected = X.copy()
        np.put_along_axis(expected, places, values, axis)
        t = tensor(X)
        np.testing.assert_array_equal(ops.put_along_axis(t, places, values, axis).data, expected)
        np.testing.assert_array_equal(t.data, X)


def test_numpys_put_along_axis_is_not_ours_which_leaves_its_argument_alone():
    with pytest.raises(AutogradError, match="put_along_axis records no graph"):
        np.put_along_axis(tensor(X, True), ALONG, 0.0, 1)


def by_loops(x, axis, index, src, add):
    """torch's definition."""
    out = x.copy()
    for place in np.ndindex(index.shape):
        to = [*place]
        to[axis] = index[place]
        out[tuple(to)] = src[place] + (out[tuple(to)] if add else 0)
    return out


@pytest.mark.parametrize(
    ("axis", "index"), [(1, ALONG), (0, np.array([[0, 2, 0], [2, 2, 1], [0, 0, 0], [1, 1, 1]]))]
)
def test_gather_and_scatter_as_torch_defines_them(axis, index):
    picked = np.zeros(index.shape)
    for place in np.ndindex(index.shape):
        place_in_x = [*place]
        place_in_x[axis] = index[place]
        picked[place] = X[tuple(place_in_x)]
    np.testing.assert_array_equal(ops.gather(X, axis, index).data, picked)
    for op, add in ((ops.scatter, False), (ops.scatter_add, True)):
        np.testing.assert_allclose(op(X, axis, index, WIDE).data, by_loops(X, axis, index, WIDE, add))


def test_what_is_put_over_has_no_gradient():
    src = tensor(WIDE[:3, :2], True)
    ops.scatter(X, 1, np.array([[3, 3], [0, 1], [2, 2]]), src).sum().backward()
    np.testing.assert_array_equal(src.grad, [[0, 1], [1, 1], [0, 1]])


def test_index_add_and_select():
    expected = X.copy()
    np.add.at(expected, AGAIN, 0.5 * WIDE[:, :4])
    np.testing.assert_allclose(ops.index_add(X, 0, AGAIN, WIDE[:, :4], 0.5).data, expected)
    np.testing.assert_array_equal(ops.index_select(X, 1, [3, 0]).data, X[:, [3, 0]])


def test_masks():
    mask = X > 0
    np.testing.assert_array_equal(ops.masked_fill(X, mask, 0).data, np.where(mask, 0, X))
    np.testing.assert_array_equal(ops.masked_select(X, mask[0]).data, X[:, mask[0]].reshape(-1))
    np.testing.assert_array_equal(ops.masked_select(X[0], mask).data, np.broadcast_to(X[0], X.shape)[mask])
    narrow = ops.masked_fill(tensor(X.astype(np.float16), True), mask, float("-inf"))
    assert narrow.dtype == np.float16 and np.isneginf(narrow.data).sum() == mask.sum()
    for ours, theirs in zip(ops.nonzero(mask), np.nonzero(mask)):
        np.testing.assert_array_equal(ours.data, theirs)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.take(X, 12), "out of bounds"),
        (lambda: ops.take(X, X), "take: indices must be of an integer dtype, not float64"),
        (lambda: ops.index_select(X, 0, ALONG), "one axis"),
        (lambda: ops.take_along_axis(X, AGAIN, 0), "need as many axes"),
        (lambda: ops.gather(X, 1, np.zeros((4, 1), int)), r"reach beyond shape \(3, 4\)"),
        (lambda: ops.gather(X, 2, ALONG), "gather: axis 2"),
        (lambda: ops.scatter(X, 1, ALONG, X[:2]), r"scatter: index of shape \(3, 2\) for a source of"),
        (lambda: ops.scatter(X, 1, ALONG + 9, 1.0), "scatter: index 12 is out of bounds"),
        (lambda: ops.scatter_add(X, 1, ALONG, WIDE[0]), "for a source of shape"),
        (lambda: ops.put_along_axis(X, ALONG, WIDE, 1), "put_along_axis: "),
        (lambda: ops.index_add(X, 0, AGAIN, WIDE), r"a source of shape \(5, 4\) is needed"),
        (lambda: ops.masked_fill(X, X > 0, X), "one value"),
        (lambda: ops.masked_fill(X[0], X > 0, 0), r"a mask of shape \(3, 4\) is larger than shape \(4,\)"),
        (lambda: ops.masked_fill(X, X, 0), "must be of dtype bool"),
        (lambda: ops.masked_select(X, ALONG), "must be of dtype bool"),
        (lambda: ops.masked_select(X, AGAIN > 0), "masked_select: "),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize("place", [3, -4])
def test_an_index_out_of_range_is_not_the_next_line(place):
    x, source = np.zeros((2, 3)), np.ones((2, 1))
    for call in (
        lambda: ops.scatter_add(x, 1, np.array([[place], [0]]), source),
        lambda: ops.scatter_add(x, -1, np.array([[0], [place]], np.int8), source),
        lambda: ops.index_add(x, 1, [place], source),
    ):
        with pytest.raises(ArgumentError, match=r"_add: indices from .* for an axis of 3"):
            call()
    assert ops.scatter_add(x, 1, np.array([[-3], [2]]), source).tolist() == [[1, 0, 0], [0, 0, 1]]
