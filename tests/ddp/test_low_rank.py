"""Thin matrices: orthonormal rows with the same bits everywhere, products in blocks."""

from typing import Any

import numpy as np
import pytest

from psframework.ddp import low_rank
from psframework.ddp.low_rank import expand, fresh, noise, orthonormal, pays, refill


def test_pays() -> None:
    assert pays((300, 40), 2)
    assert pays((8, 4, 3, 3), 2)
    assert not pays((40,), 1)
    assert not pays((), 1)
    assert not pays((4, 4), 2)
    assert not pays((0, 4), 1)


def test_noise_is_the_same_everywhere() -> None:
    values = noise(0, "weight", 1, 1000)
    assert values[0] == 0.27133599293414457
    assert -1 <= values.min() < -0.9 < 0.9 < values.max() < 1
    assert abs(values.mean()) < 0.05
    for other in (noise(1, "weight", 1, 3), noise(0, "bias", 1, 3), noise(0, "weight", 2, 3)):
        assert not np.isclose(other, values[:3]).any()


@pytest.mark.parametrize("length", [1, 2, 5, 64, 999])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_orthonormal(length: int, dtype: Any) -> None:
    rank = min(4, length)
    rows = np.random.default_rng(0).standard_normal((rank, length)).astype(dtype)
    rows[-1] = rows[0] + 1e-3 * rows[-1] if rank > 1 else rows[-1]
    made = orthonormal(rows, np.dtype(dtype))
    assert made.dtype == dtype
    np.testing.assert_allclose(made @ made.T, np.eye(rank), atol=100 * np.finfo(dtype).eps)
    # of the same space: nothing is left of the rows without their parts along the new ones
    rest = rows - (rows @ made.T) @ made
    assert np.abs(rest).max() < 100 * np.finfo(dtype).eps * np.abs(rows).max()


def test_rows_that_depend_on_others_become_0_and_are_filled_anew() -> None:
    rows = np.stack([np.arange(1.0, 9), np.zeros(8), 3 * np.arange(1.0, 9), np.eye(8)[2]])
    made = orthonormal(rows, np.dtype(np.float64))
    assert [bool(row.any()) for row in made] == [True, False, False, True]
    refill(made, 0, "weight", 7)
    again = orthonormal(made, np.dtype(np.float64))
    np.testing.assert_allclose(again @ again.T, np.eye(4), atol=1e-14)
    np.testing.assert_allclose(again[0], made[0])


def test_fresh_is_like_the_gradient() -> None:
    made = fresh(0, "weight", (2, 5), np.zeros((3, 5), np.float32))
    assert made.shape == (2, 5)
    assert made.dtype == np.float32


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
@pytest.mark.parametrize("in_place", [True, False])
def test_expand(block: int, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank, "_BLOCK", block)
    rng = np.random.default_rng(1)
    p, q, total = rng.standard_normal((3, 6)), rng.standard_normal((3, 4)), rng.standard_normal((6, 4))
    product, before = p.T @ q, total.copy()
    buffer: Any = total if in_place else np.zeros((6, 4), np.float16)
    residual = np.zeros((6, 4))
    expand(p, q, total, buffer, residual)
    np.testing.assert_allclose(buffer, product.astype(buffer.dtype), atol=1e-14 if in_place else 5e-3)
    np.testing.assert_allclose(buffer + residual, before, atol=1e-15)
    expand(p, q, total, buffer, None)
    np.testing.assert_allclose(buffer + residual, before, atol=1e-15)
