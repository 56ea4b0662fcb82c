"""The bundled digits are the data set that their licence file names."""

import hashlib
from importlib import resources

import numpy as np

from psframework.data import digits


def test_shapes_ranges_and_unpacking() -> None:
    x_train, y_train, x_test, y_test = digits()
    assert x_train.shape == (1437, 1, 8, 8) and x_test.shape == (360, 1, 8, 8)
    assert x_train.dtype == np.float32 and y_train.dtype == np.int64
    assert x_train.min() == 0 and x_train.max() == 1
    for labels in (y_train, y_test):
        counts = np.bincount(labels, minlength=10)
        assert counts.shape == (10,) and counts.min() > 0.05 * len(labels)


def test_flat_is_the_same_data() -> None:
    flat = digits(flat=True)
    assert flat.x_test.shape == (360, 64)
    np.testing.assert_array_equal(flat.x_test, digits().x_test.reshape(360, 64))
    np.testing.assert_array_equal(flat.y_test, digits().y_test)


def test_no_image_is_in_both_parts() -> None:
    data = digits(flat=True)
    train = {row.tobytes() for row in data.x_train}
    assert not [row for row in data.x_test if row.tobytes() in train]


def test_the_split_is_the_same_on_every_machine() -> None:
    digest = hashlib.sha256(digits().y_test.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "b41291f442ab73a0"


def test_callers_may_change_their_arrays() -> None:
    digits().x_train[...] = 7
    assert digits().x_train.max() == 1


def test_attribution_is_bundled() -> None:
    text = resources.files("psframework.data").joinpath("digits.LICENSE.txt").read_text()
    assert "CC BY 4.0" in text and "Alpaydin" in text


def test_can_be_learnt() -> None:
    """Nearest neighbour reaches what is published for this data (98 %): pixels and labels belong together."""
    data = digits(flat=True)
    distance = (data.x_test**2).sum(1)[:, None] - 2 * data.x_test @ data.x_train.T + (data.x_train**2).sum(1)
    assert (data.y_train[distance.argmin(1)] == data.y_test).mean() > 0.97
