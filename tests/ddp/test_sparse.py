"""Averages of sparse gradients: as those of dense ones, whoever has which rows."""

import asyncio
from typing import Any

import numpy as np
import pytest
from losing import Losing, complaints
from rank_tasks import on_ranks

import psframework as psf
from psframework.autograd.sparse import SparseRows
from psframework.backend import bfloat16
from psframework.ddp.sparse import average_sparse
from psframework.errors import PeerLost

SHAPES = ((9, 4), (50,), (6, 2, 3))


def gradients(rank: int, dtype: Any = np.float64) -> list[Any]:
    """Other rows, and other numbers of rows, on each rank: some come twice, rank 1 has none of the second."""
    rng = np.random.default_rng(rank)
    made = []
    for number, shape in enumerate(SHAPES):
        n = 0 if (rank, number) == (1, 1) else 3 * rank + number
        values = rng.standard_normal((n, *shape[1:])).astype(dtype)
        made.append(SparseRows(rng.integers(0, shape[0], n), values, shape))
    return made


def parameters(dtype: Any = np.float64) -> list[psf.nn.Parameter]:
    return [psf.nn.Parameter(np.zeros(shape, dtype)) for shape in SHAPES]


def averaged(size: int, given: Any, dtype: Any = np.float64, scale: float = 1.0) -> list[list[Any]]:
    async def rank(group: Any) -> Any:
        return await average_sparse(given(group.rank), parameters(dtype), group, scale)

    return asyncio.run(on_ranks(size, rank))


async def test_a_loss_is_told_once() -> None:
    with complaints() as heard, pytest.raises(PeerLost):
        await average_sparse(gradients(2), parameters(), Losing(1), 1.0)
    assert not heard


def same_on_all(results: list[list[Any]]) -> None:
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            if isinstance(mine, SparseRows):
                assert mine.rows.tobytes() == theirs.rows.tobytes()
                assert mine.values.tobytes() == theirs.values.tobytes()
            else:
                assert mine is theirs is None or mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_equals_the_dense_average(size: int) -> None:
    results = averaged(size, gradients)
    same_on_all(results)
    for number, found in enumerate(results[0]):
        assert isinstance(found, SparseRows)
        assert found.coalesced
        assert (np.diff(found.rows) > 0).all()
        dense = [gradients(rank)[number].to_dense() for rank in range(size)]
        np.testing.assert_allclose(found.to_dense(), np.mean(dense, axis=0), atol=1e-15)
        touched = np.unique(np.concatenate([gradients(rank)[number].rows for rank in range(size)]))
        np.testing.assert_array_equal(found.rows, touched)


def test_scale() -> None:
    once, twice = averaged(3, gradients)[0], averaged(3, gradients, scale=2.0)[0]
    for one, other in zip(once, twice):
        np.testing.assert_allclose(2 * one.values, other.values)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
def test_other_dtypes_are_rounded_once(dtype: Any) -> None:
    results = averaged(3, lambda rank: gradients(rank, dtype), dtype)
    same_on_all(results)
    for number, found in enumerate(results[0]):
        assert found.dtype == dtype
        dense = [gradients(rank, dtype)[number].coalesce().to_dense().astype(np.float32) for rank in range(3)]
        mean = ((dense[0] + dense[1]) + dense[2]) / np.float32(3)
        np.testing.assert_array_equal(found.to_dense(), mean.astype(dtype))


def test_a_rank_without_a_gradient_has_no_rows() -> None:
    def given(rank: int) -> list[Any]:
        return [gradients(rank)[0] if rank == 2 else None, None, None if rank == 0 else gradients(0)[2]]

    results = averaged(3, given)
    same_on_all(results)
    first, second, third = results[0]
    np.testing.assert_allclose(first.to_dense(), gradients(2)[0].to_dense() / 3)
    assert second is None
    np.testing.assert_allclose(third.to_dense(), gradients(0)[2].to_dense() * 2 / 3)


def test_where_a_rank_has_an_array_all_get_one() -> None:
    def given(rank: int) -> list[Any]:
        first, second, third = gradients(rank)
        return [first.to_dense() if rank == 1 else None if rank == 2 else first, second, third]

    results = averaged(3, given)
    same_on_all(results)
    expected = (gradients(0)[0].to_dense() + gradients(1)[0].to_dense()) / 3
    np.testing.assert_allclose(results[2][0], expected, atol=1e-15)
    assert isinstance(results[2][1], SparseRows)


def test_no_rows_anywhere() -> None:
    empty = [SparseRows(np.zeros(0, np.int64), np.zeros((0, *shape[1:])), shape) for shape in SHAPES]
    results = averaged(2, lambda rank: empty)
    same_on_all(results)
    assert [len(found.rows) for found in results[0]] == [0, 0, 0]


def test_wide_averages_of_narrow_parameters() -> None:
    async def rank(group: Any) -> Any:
        rows = SparseRows(np.array([1]), np.full((1, 4), 70000.0, np.float32), (9, 4))
        given = [rows, rows.to_dense() if group.rank == 0 else None]
        tables = [psf.nn.Parameter(np.zeros((9, 4), np.float16)) for _ in given]
        return await average_sparse(given, tables, group, group.size, wide=True)

    results = asyncio.run(on_ranks(2, rank))
    same_on_all(results)
    rows, dense = results[0]
    assert rows.dtype == dense.dtype == np.float32
    assert (rows.to_dense()[1] == 140000).all() and (dense[1] == 70000).all()
