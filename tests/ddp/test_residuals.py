"""Residuals: kept by parameter, whatever the buckets are."""

from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.ddp.bucket import Bucket
from psframework.ddp.residuals import Residuals, finite

A, B, C = (psf.nn.Parameter(np.zeros(shape, np.float32)) for shape in ((2, 2), (3,), ()))


def bucket(parameters: dict[str, tuple[psf.nn.Parameter, int]], size: int, dtype: Any = np.float32) -> Bucket:
    return Bucket(
        0,
        np.ones(size, dtype),
        [parameter for parameter, _ in parameters.values()],
        list(parameters),
        [start for _, start in parameters.values()],
        group=None,  # type: ignore[arg-type]
    )


def test_they_follow_parameters_into_other_buckets() -> None:
    residuals = Residuals()
    first, second = bucket({"a": (A, 0), "b": (B, 4)}, 7), bucket({"c": (C, 0)}, 1)
    residuals.keep(first, np.arange(7))
    residuals.keep(second, np.array([10]))
    assert residuals.of(first).tolist() == list(range(7))
    anew = bucket({"c": (C, 0), "b": (B, 4)}, 8)
    assert residuals.of(anew).tolist() == [10, 0, 0, 0, 4, 5, 6, 0]
    assert residuals.of(bucket({"a": (A, 1)}, 5)).tolist() == [0, 0, 1, 2, 3]
    residuals.keep(anew, np.full(8, 3))
    assert {name: array.tolist() for name, array in residuals.arrays().items()} == {
        "a": [[0, 1], [2, 3]], "b": [3, 3, 3], "c": 3,
    }  # fmt: skip


def test_added_is_in_the_buffer_or_in_32_bits() -> None:
    residuals = Residuals()
    wide = bucket({"b": (B, 0)}, 3)
    assert residuals.added(wide) is wide.buffer
    residuals.keep(wide, np.array([0.5, 2**-20, 1]))
    narrow = bucket({"b": (B, 0)}, 3, np.float16)
    total = residuals.added(narrow)
    assert total.dtype == np.float32
    assert total.tolist() == [1.5, 1 + 2**-20, 2]
    assert narrow.buffer.tolist() == [1, 1, 1]


def test_loading() -> None:
    residuals = Residuals()
    given = {"b": np.array([1.0, 2, 3])}
    residuals.load(given)
    given["b"][:] = 0
    assert residuals.of(bucket({"a": (A, 0), "b": (B, 4)}, 7)).tolist() == [0, 0, 0, 0, 1, 2, 3]
    residuals.load({"b": np.zeros(4)})
    with pytest.raises(psf.ArgumentError, match="another model"):
        residuals.of(bucket({"b": (B, 0)}, 3))


def test_finite() -> None:
    assert finite(np.ones(3), np.zeros(0))
    assert not finite(np.ones(3), np.array([1, np.nan]))
    assert not finite(np.array(np.inf, np.float16))
