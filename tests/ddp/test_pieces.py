"""Pieces as tensors over their parameter's memory, and their way to the other ranks."""

import numpy as np
import pytest

import psframework as psf
from psframework.autograd.sparse import SparseRows
from psframework.backend import Array
from psframework.ddp.partition import Extent, Piece, nbytes, partition
from psframework.ddp.pieces import Part, flat, pack, put, unpack
from psframework.optim import LAMB, Adam, Optimizer, RowWiseAdagrad


def part(optimizer: Optimizer, parameter: psf.nn.Parameter, first: int, last: int) -> Part:
    extent = Extent.of(optimizer.rule, parameter.shape, parameter.dtype)
    return Part(parameter, extent, Piece(0, first, last, 0))


def table() -> psf.nn.Parameter:
    parameter = psf.nn.Parameter(np.arange(12, dtype=np.float32).reshape(4, 3))
    parameter.grad = -parameter.data
    return parameter


def test_a_piece_shares_the_memory_of_its_parameter() -> None:
    parameter = table()
    mine = part(Adam(), parameter, 2, 7)
    mine.refresh()
    assert mine.tensor.data.tolist() == [2, 3, 4, 5, 6]
    assert mine.tensor.grad.tolist() == [-2, -3, -4, -5, -6]
    mine.tensor.data[:] = 0
    assert parameter.data.reshape(-1).tolist() == [0, 1, 0, 0, 0, 0, 0, 7, 8, 9, 10, 11]
    parameter.data, parameter.grad = parameter.data + 1, None
    mine.refresh()
    assert mine.tensor.data.tolist() == [1, 1, 1, 1, 1]
    assert mine.tensor.grad is None


def test_rows_and_whole_parameters_keep_their_shape() -> None:
    parameter = table()
    rows, whole = part(RowWiseAdagrad(), parameter, 1, 3), part(LAMB(), parameter, 0, 1)
    assert rows.tensor.data.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert whole.tensor.data is not parameter.data
    assert whole.tensor.shape == (4, 3)


def test_what_is_not_contiguous_is_made_so() -> None:
    parameter = psf.nn.Parameter(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    flat(parameter)[:3] = 9
    assert parameter.data.tolist() == [[9, 9, 9], [3, 4, 5]]


@pytest.mark.parametrize(("first", "last"), [(0, 12), (2, 7), (4, 5), (6, 6), (10, 12)])
def test_sparse_gradients_of_pieces_are_the_same_elements(first: int, last: int) -> None:
    parameter = table()
    gradient = SparseRows(np.array([2, 0, 2]), np.arange(1.0, 10).reshape(3, 3).astype(np.float32), (4, 3))
    parameter.grad = gradient
    mine = part(Adam(), parameter, first, last)
    mine.refresh()
    found = mine.tensor.grad
    assert isinstance(found, SparseRows)
    np.testing.assert_array_equal(found.to_dense(), gradient.to_dense().reshape(-1)[first:last])
    touched = np.array([0, 1, 2, 6, 7, 8])
    assert found.rows.tolist() == (touched[(touched >= first) & (touched < last)] - first).tolist()


def test_sparse_gradients_of_rows_are_those_rows() -> None:
    parameter = table()
    gradient = SparseRows(np.array([3, 1]), np.ones((2, 3), np.float32), (4, 3))
    parameter.grad = gradient
    mine = part(RowWiseAdagrad(), parameter, 1, 3)
    mine.refresh()
    assert mine.tensor.grad.rows.tolist() == [0]
    whole = part(LAMB(), parameter, 0, 1)
    whole.refresh()
    assert whole.tensor.grad.shape == (4, 3)


@pytest.mark.parametrize(
    ("optimizer", "slot"),
    [(Adam(), np.arange(12.0).reshape(4, 3)), (RowWiseAdagrad(), np.arange(4.0)[:, None])],
)
def test_slots_are_cut_and_put_back(optimizer: Optimizer, slot: Array) -> None:
    rule = optimizer.rule
    extent, name = Extent.of(rule, (4, 3), np.dtype(np.float32)), next(iter(rule.slots()))
    back = np.zeros_like(slot)
    for first, last in ((0, 1), (1, extent.units)):
        mine = part(optimizer, table(), first, last)
        cut = mine.cut(slot)
        assert cut.shape == rule.slot_shape(name, mine.tensor.shape)
        put(back, cut, mine.piece, extent)
    np.testing.assert_array_equal(back, slot)


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_bytes_go_to_the_others(chunk: int) -> None:
    dtypes, shapes = (np.float32, np.float16, np.float64), ((5, 3), (7,), ())
    rng = np.random.default_rng(0)
    mine = [
        psf.nn.Parameter(np.asarray(rng.standard_normal(shape)).astype(dtype))
        for dtype, shape in zip(dtypes, shapes)
    ]
    theirs = [psf.nn.Parameter(np.zeros(p.shape, p.dtype)) for p in mine]
    extents = [Extent.of(Adam().rule, p.shape, p.dtype) for p in mine]
    for share in partition(extents, 3):
        data = np.empty(nbytes(share, extents), np.uint8)
        pack(mine, share, extents, data)
        for start in range(0, len(data), chunk):
            unpack(theirs, share, extents, data[start : start + chunk], start)
    for one, other in zip(mine, theirs):
        np.testing.assert_array_equal(one.data, other.data)
