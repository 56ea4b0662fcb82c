"""The bundled data: 1,797 real images of handwritten digits, so that a first run downloads nothing.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998
(its test set); CC BY 4.0, see digits.LICENSE.txt beside this file.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from psframework.backend import Array

_TEST_IMAGES = 360
_SPLIT_SEED = 20


class Digits(NamedTuple):
    """Images and their digits, split into training and test; unpacks into its four arrays."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def digits(*, flat: bool = False) -> Digits:
    """The handwritten digits: 1,437 images to train with and 360 to test with, split alike on every machine.

    Args:
        flat: images as rows of 64 values instead of (1, 8, 8).

    Returns:
        Images as float32 in [0, 1], of shape (n, 1, 8, 8) or (n, 64); digits 0-9 as int64, of shape (n,).
        The arrays are the caller's to change.
    """
    table = _table()
    images = (table[:, :64] / np.float32(16)).reshape((-1, 64) if flat else (-1, 1, 8, 8))
    labels = table[:, 64].astype(np.int64)
    order = _order(len(table))
    test, train = order[:_TEST_IMAGES], order[_TEST_IMAGES:]
    return Digits(images[train], labels[train], images[test], labels[test])


@cache
def _table() -> Array:
    """One row for each image: 64 pixels of 0-16, then the digit."""
    packed = resources.files(__package__).joinpath("digits.csv.gz").read_bytes()
    return np.loadtxt(gzip.decompress(packed).decode().splitlines(), np.uint8, delimiter=",")


def _order(n: int) -> Array:
    """A fixed shuffle: the file is ordered by writer, so its tail would be other people's handwriting.

    Raw words of PCG64 are the same in every NumPy; Generator.permutation is not promised to be.
    """
    return np.argsort(np.random.PCG64(_SPLIT_SEED).random_raw(n), kind="stable")
