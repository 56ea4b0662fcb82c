"""Combining in rank order, cutting, and every collective in one place."""

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.collective.algorithms import BLOCK, bounds, combine, reference
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp, check_op
from psframework.errors import ArgumentError

FLOATS = ("float16", "float32", "float64", "complex64")


def arrays(dtype: str, ranks: int, n: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    made = random.standard_normal((ranks, n)) * 3
    if dtype.startswith("complex"):
        made = made + 1j * random.standard_normal((ranks, n))
    return list(made.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))


def takes(op: ReduceOp, dtype: str) -> bool:
    try:
        check_op(op, np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
    except ArgumentError:
        return False
    return True


def one_by_one(parts: list[np.ndarray]) -> np.ndarray:
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8", "uint64"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 1000, BLOCK + 3])
def test_sums_in_rank_order(dtype: str, ranks: int, n: int) -> None:
    parts = arrays(dtype, ranks, n)
    assert combine(ReduceOp.SUM, parts, ranks).tobytes() == one_by_one(parts).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
def test_narrow_sums_are_rounded_once(dtype: type, ranks: int, op: ReduceOp) -> None:
    parts = [each.astype(dtype) for each in arrays("float32", ranks, BLOCK + 5)]
    wide = one_by_one([part.astype(np.float32) for part in parts])
    wide = wide / np.float32(ranks) if op is ReduceOp.AVG else wide
    result = combine(op, parts, ranks)
    assert result.dtype == dtype
    assert result.tobytes() == wide.astype(dtype).tobytes()


def test_a_narrow_average_does_not_overflow_on_its_way() -> None:
    parts = [np.full(3, 60000, np.float16)] * 4
    assert combine(ReduceOp.AVG, parts, 4).tolist() == [60000.0] * 3


UFUNCS = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip
KINDS = ("bool", "int8", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("op", "dtype"), [(op, dtype) for op in ReduceOp for dtype in KINDS if takes(op, dtype)]
)
def test_each_operation_to_the_bit(op: ReduceOp, dtype: str, ranks: int) -> None:
    """With NaN, infinities, -0.0, numbers near the largest, and integers that overflow."""
    parts = arrays(dtype, ranks, 50)
    for rank, part in enumerate(parts):
        info = None if part.dtype.kind in "biu" else ml_dtypes.finfo(part.real.dtype)
        if info is None:
            part[:4] = np.array([0, 1, 100, 127]).astype(dtype)
            part[4:6] = ~np.zeros((), dtype)
        else:
            part[rank] = np.nan  # a NaN and another one: which, is not said
            part[4:8] = np.array([np.inf, -0.0, 0.0 if rank else -0.0, float(info.max)]).astype(part.dtype)
    narrow = dtype in ("float16", "bfloat16")
    with np.errstate(all="ignore"):
        total = functools.reduce(UFUNCS[op], [part.astype(np.float32) if narrow else part for part in parts])
        total = np.divide(total, np.array(ranks, total.dtype)) if op is ReduceOp.AVG else total
        assert combine(op, parts, ranks).tobytes() == total.astype(parts[0].dtype).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_result_may_go_into_any_of_the_parts(dtype: str, ranks: int) -> None:
    for into in range(ranks):
        parts = arrays(dtype, ranks, BLOCK + 9)
        expected = combine(ReduceOp.AVG, parts, ranks)
        assert combine(ReduceOp.AVG, parts, ranks, out=parts[into]) is parts[into]
        assert parts[into].tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT])
@pytest.mark.parametrize("dtype", [*FLOATS, "complex128", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_cuts_change_no_bit(dtype: str, ranks: int, op: ReduceOp) -> None:
    """Nor does it where the result goes. (One complex number NumPy multiplies in another way in place.)"""
    for n, cut in itertools.product((1, 2, 33, 400), (0, 1, 16, 17, 32)):
        parts = arrays(dtype, ranks, n, seed=n)
        whole = combine(op, parts, ranks)
        for into, span in itertools.product((None, *range(ranks)), (slice(cut), slice(cut, n))):
            cuts = [part[span].copy() for part in parts]
            got = combine(op, cuts, ranks, None if into is None else cuts[into])
            assert got.tobytes() == whole[span].tobytes(), (n, span, into)


def test_an_overflow_is_silent_infinity(recwarn: pytest.WarningsRecorder) -> None:
    for dtype in ("float16", "float32"):
        top = np.full(2, np.finfo(dtype).max, dtype)
        assert np.isinf(combine(ReduceOp.SUM, [top, top, top], 3)).all()
    assert not recwarn.list


@given(st.integers(0, 1000), st.integers(1, 20))
def test_bounds_are_those_of_array_split(n: int, size: int) -> None:
    borders = bounds(n, size)
    parts = np.array_split(np.arange(n), size)
    assert [stop - start for start, stop in itertools.pairwise(borders)] == [len(part) for part in parts]
    assert borders[0] == 0 and borders[-1] == n


def made(operation: Operation, root: int = -1) -> Descriptor:
    reducing = operation in (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
    return Descriptor(1, operation, "int64", (6,), ReduceOp.SUM if reducing else None, root)


def test_what_each_rank_gets() -> None:
    sends = {0: np.arange(6), 1: np.arange(6) + 10, 2: np.arange(6) + 20}

    def lists(operation: Operation, root: int = -1) -> list[list[int] | None]:
        got = reference(made(operation, root), sends, 3)
        return [None if each is None else each.tolist() for each in (got[rank] for rank in range(3))]

    total = [30, 33, 36, 39, 42, 45]
    everything = [*range(6), *range(10, 16), *range(20, 26)]
    assert lists(Operation.ALL_REDUCE) == [total] * 3
    assert lists(Operation.REDUCE, 1) == [None, total, None]
    assert lists(Operation.BROADCAST, 2) == [sends[2].tolist(), sends[2].tolist(), None]
    assert lists(Operation.ALL_GATHER) == [everything] * 3
    assert lists(Operation.GATHER, 0) == [everything, None, None]
    assert lists(Operation.SCATTER, 1) == [[10, 11], [12, 13], [14, 15]]
    assert lists(Operation.REDUCE_SCATTER) == [[30, 33], [36, 39], [42, 45]]
    assert lists(Operation.ALL_TO_ALL) == [
        [0, 1, 10, 11, 20, 21], [2, 3, 12, 13, 22, 23], [4, 5, 14, 15, 24, 25],
    ]  # fmt: skip
    assert lists(Operation.BARRIER) == [None] * 3
    assert sends[1].tolist() == [10, 11, 12, 13, 14, 15]


def test_results_are_new_arrays() -> None:
    sends = {0: np.arange(4), 1: np.arange(4)}
    for operation in (Operation.BROADCAST, Operation.SCATTER):
        got = reference(Descriptor(1, operation, "int64", (4,), None, 0), sends, 2)
        assert not any(np.shares_memory(array, sends[0]) for array in got.values() if array is not None)
    both = reference(Descriptor(1, Operation.ALL_REDUCE, "int64", (4,), ReduceOp.SUM), sends, 2)
    assert both[0] is not both[1]


def test_what_is_no_collective_is_refused() -> None:
    with pytest.raises(ArgumentError, match="send is no operation of all ranks"):
        reference(Descriptor(1, Operation.SEND, "int64", (4,)), {}, 2)
    with pytest.raises(ArgumentError, match="rank 1 gave no array"):
        reference(made(Operation.ALL_GATHER), {0: np.arange(6)}, 2)
