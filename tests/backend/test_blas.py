"""Products that are added in one pass, beside NumPy's two steps."""

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from psframework.backend import blas
from psframework.backend.blas import add_product


@pytest.fixture(autouse=True)
def look_again() -> Iterator[None]:
    """What is known of the BLAS is that of the test."""
    blas._gemm.cache_clear()
    yield
    blas._gemm.cache_clear()


def laid(array: np.ndarray, how: str) -> np.ndarray:
    """The same values, lying in another way."""
    rows, columns = array.shape
    if how == "C":
        return np.ascontiguousarray(array)
    if how == "F":
        return np.asfortranarray(array)
    if how == "rows of a wider one":
        wide = np.full((rows + 2, columns + 3), np.nan, array.dtype)
        wide[1:-1, 2:-1] = array
        return wide[1:-1, 2:-1]
    if how == "every other":
        wide = np.full((rows, 2 * columns), np.nan, array.dtype)
        wide[:, ::2] = array
        return wide[:, ::2]
    assert how == "backwards"
    return array[::-1].copy()[::-1]


LAYOUTS = ["C", "F", "rows of a wider one", "every other", "backwards"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_total", LAYOUTS)
def test_equals_two_steps(of_total: str, of_a: str, of_b: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [(7, 5), (7, 3), (3, 5)]
    total, a, b = (
        laid(rng.integers(-9, 9, shape).astype(dtype), how)
        for shape, how in zip(shapes, (of_total, of_a, of_b))
    )
    around = total.base if total.base is not None else total
    before = int(np.isnan(around).sum())
    expected = total + a.dot(b)
    add_product(total, a, b)
    np.testing.assert_array_equal(total, expected)
    assert np.isnan(around).sum() == before  # nothing was written beside it


@pytest.mark.parametrize("shape", [(0, 3, 4), (4, 0, 3), (3, 4, 0), (1, 1, 1), (1, 5, 1), (5, 1, 5)])
def test_sizes_at_the_edge(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    total, a, b = np.ones((m, n)), np.full((m, k), 2.0), np.full((k, n), 3.0)
    add_product(total, a, b)
    assert (total == 1 + 6 * k).all()


@pytest.mark.parametrize("dtypes", ["eee", "ddf", ">f8 d d", "iii"])
def test_other_dtypes_are_left_to_numpy(dtypes: str) -> None:
    kinds = dtypes.split() if " " in dtypes else list(dtypes)
    total, a, b = (np.arange(4).reshape(2, 2).astype(kind) for kind in kinds)
    expected = total + a.dot(b)
    add_product(total, a, b)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize(
    "shapes", [((2, 2), (2, 3), (4, 2)), ((2, 2), (3, 3), (3, 2)), ((2, 3), (2, 2), (2, 2))]
)
def test_shapes_that_do_not_fit_raise_as_numpy_does(shapes: list[tuple[int, int]]) -> None:
    """The BLAS would write beside the array."""
    total, a, b = (np.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"shapes|broadcast"):
        add_product(total, a, b)
    assert (total == 1).all()


def test_what_is_read_only_is_not_written() -> None:
    total = np.ones((2, 2))
    total.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        add_product(total, np.eye(2), np.eye(2))
    assert (total == 1).all()


def test_a_step_that_fits_no_32_bits_is_left_to_numpy() -> None:
    far = as_strided(np.ones(3), (1, 3), (1 << 33, 8))
    assert blas._layout(far) is None and blas._layout(far[:, :3].copy()) is not None
    total = np.ones((2, 3))
    add_product(total, np.ones((2, 1)), far)
    assert (total == 2).all()


def test_the_blas_of_numpy_is_found() -> None:
    assert blas._gemm(np.dtype("float32")) is not None and blas._gemm(np.dtype("float64")) is not None


class Library(SimpleNamespace):
    """A BLAS that computes something else."""

    def __init__(self, path: str) -> None:
        @ctypes.CFUNCTYPE(None)
        def wrong() -> None:
            pass

        super().__init__(cblas_dgemm=wrong)


@pytest.mark.parametrize("library", [Library, SimpleNamespace])
def test_without_one_that_computes_right_numpy_does(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path: library() if library is SimpleNamespace else library(path)
    )
    assert blas._gemm(np.dtype("float64")) is None
    total = np.ones((2, 2))
    add_product(total, np.eye(2), np.eye(2))
    assert (total == np.eye(2) + 1).all()
