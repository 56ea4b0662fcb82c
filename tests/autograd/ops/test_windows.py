import itertools

import numpy as np
import pytest

from psframework.autograd.ops.windows import Windows, fold, inside_out, outside_in, pad, sizes, unfold
from psframework.errors import ArgumentError

rng = np.random.default_rng(3)
WINDOWS = [
    # images of (channel, ..., image), then the windows
    ((2, 7, 3), Windows((3,), (2,), (1,), (1,), (1,))),
    ((2, 7, 3), Windows((2,), (1,), (0,), (1,), (3,))),
    ((2, 4, 5, 3), Windows((2, 3), (1, 2), (1, 0), (0, 2), (2, 1))),
    ((1, 3, 2, 4, 2), Windows((2, 2, 2), (1, 1, 2), (0, 1, 0), (0, 0, 0), (1, 1, 1))),
]


@pytest.mark.parametrize(("shape", "windows"), WINDOWS)
def test_unfold_is_the_definition(shape, windows):
    images = rng.standard_normal(shape)
    counts = windows.counts("test", shape[1:-1])
    columns = unfold(images, windows, counts).reshape(shape[0], *windows.kernel, *counts, shape[-1])
    border = [(0, 0), *zip(windows.before, windows.after), (0, 0)]
    padded = np.pad(images, border)
    for place in itertools.product(*map(range, windows.kernel)):
        for window in itertools.product(*map(range, counts)):
            at = tuple(i * d + w * s for i, d, w, s in zip(place, windows.dilation, window, windows.stride))
            np.testing.assert_array_equal(columns[(slice(None), *place, *window)], padded[(slice(None), *at)])


@pytest.mark.parametrize(("shape", "windows"), WINDOWS)
def test_fold_is_the_transpose_of_unfold(shape, windows):
    images, counts = rng.standard_normal(shape), windows.counts("test", shape[1:-1])
    columns = unfold(images, windows, counts)
    others = rng.standard_normal(columns.shape)
    np.testing.assert_allclose(
        (columns * others).sum(), (images * fold(others, shape, windows, counts)).sum()
    )


def test_places_are_those_of_unfold():
    shape, windows = WINDOWS[2]
    images, counts = rng.standard_normal(shape), windows.counts("test", shape[1:-1])
    columns = unfold(images, windows, counts).reshape(2, *windows.kernel, *counts, 3)
    for place, index in windows.places(counts):
        np.testing.assert_array_equal(pad(images, windows)[index], columns[(slice(None), *place)])


def test_an_image_without_border_is_not_copied():
    images = rng.standard_normal((2, 4, 3))
    windows = Windows((2,), (1,), (0,), (0,), (1,))
    assert np.shares_memory(pad(images, windows), images)
    one = Windows((1,), (1,), (0,), (0,), (1,))
    assert np.shares_memory(unfold(images, one, (4,)), images)
    assert (pad(images, WINDOWS[0][1], 7)[:, [0, -1]] == 7).all()


@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 3), (5, 2, 3, 4)])
def test_inside_out_and_back(shape):
    images = rng.standard_normal(shape)
    assert inside_out(images).shape == (*shape[1:], 5)
    np.testing.assert_array_equal(outside_in(inside_out(images)), images)


def test_a_window_that_does_not_fit():
    windows = Windows((3, 3), (1, 1), (0, 0), (0, 0), (1, 2))
    assert windows.counts("test", (3, 5)) == (1, 1)
    with pytest.raises(ArgumentError, match=r"test: a window of \(3, 3\) .* \(3, 4\)"):
        windows.counts("test", (3, 4))


def test_sizes():
    assert sizes("op", "stride", 2, 2, 1) == sizes("op", "stride", [2, np.int64(2)], 2, 1) == (2, 2)
    assert sizes("op", "stride", (3,), 2, 1) == (3, 3)
    for bad in (0, (1, 2, 3), 1.5, "2", None, (), (1, 0)):
        with pytest.raises(ArgumentError, match="op: stride="):
            sizes("op", "stride", bad, 2, 1)
