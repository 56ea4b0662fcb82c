"""Shares of the optimizer's state: everything once, and equal, whatever the model."""

from typing import Any

import numpy as np
import pytest

from psframework.backend import bfloat16
from psframework.ddp.partition import Extent, Piece, nbytes, partition
from psframework.optim import LAMB, SGD, Adam, RowWiseAdagrad

F32 = np.dtype(np.float32)
MODELS = {
    "one huge": [(4096, 1024), (4096,)],
    "many small": [(3, 5), (5,), ()] * 40,
    "one element": [(1,)],
    "rows": [(10_000, 16)],
    "with nothing": [(0, 4), (7, 3)],
    "transformer": [(1000, 64)] + [(192, 64), (192,), (64, 64), (64,), (256, 64), (64, 256)] * 6,
}
every_model = pytest.mark.parametrize("shapes", MODELS.values(), ids=MODELS)
sizes = pytest.mark.parametrize("size", [1, 2, 3, 7])


def extents(optimizer: Any, shapes: Any, dtype: Any = F32) -> list[Extent]:
    return [Extent.of(optimizer.rule, shape, np.dtype(dtype)) for shape in shapes]


@every_model
@sizes
@pytest.mark.parametrize("optimizer", [Adam(), SGD(), RowWiseAdagrad(), LAMB()])
def test_every_unit_is_kept_once_and_has_its_place(optimizer: Any, shapes: Any, size: int) -> None:
    given = extents(optimizer, shapes)
    shares = partition(given, size)
    assert len(shares) == size
    kept: dict[int, list[int]] = {index: [] for index in range(len(shapes))}
    for share in shares:
        end = 0
        for piece in share:
            assert piece.offset == end
            kept[piece.index] += range(piece.first, piece.last)
            end += nbytes([piece], given)
        assert end == nbytes(share, given)
    assert [sorted(units) for units in kept.values()] == [list(range(extent.units)) for extent in given]
    assert {piece.index for share in shares for piece in share} == set(range(len(shapes)))


@every_model
@sizes
def test_elementwise_rules_are_split_evenly(shapes: Any, size: int) -> None:
    given = extents(Adam(), shapes)
    total = sum(extent.units * extent.state for extent in given)
    for share in partition(given, size):
        mine = sum((piece.last - piece.first) * given[piece.index].state for piece in share)
        assert mine <= total / size * 1.05 + max(extent.state for extent in given)


def test_two_dtypes_are_split_each() -> None:
    given = extents(Adam(), [(100,)]) + extents(Adam(), [(100,)], bfloat16)
    assert [extent.state for extent in given] == [8, 12]
    assert [[(p.index, p.last - p.first) for p in share] for share in partition(given, 2)] == [
        [(0, 50), (1, 50)], [(0, 50), (1, 50)],
    ]  # fmt: skip


def test_whole_parameters_go_to_whom_has_least() -> None:
    given = extents(LAMB(), [(10,), (50,), (30,), (20,)])
    first, second = partition(given, 2)
    assert [piece.index for piece in first] == [0, 1]
    assert second == [Piece(2, 0, 1, 0), Piece(3, 0, 1, 120)]


def test_rows_are_not_cut() -> None:
    given = extents(RowWiseAdagrad(), [(5, 3), (4,)])
    assert [(extent.units, extent.unit, extent.state) for extent in given] == [(5, 3, 4), (4, 1, 4)]
    first, second = partition(given, 2)
    assert first == [Piece(0, 0, 4, 0)]
    assert second == [Piece(0, 4, 5, 0), Piece(1, 0, 4, 12)]
