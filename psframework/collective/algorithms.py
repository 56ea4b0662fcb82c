"""What every collective computes: how arrays are combined, cut, and who gets what. No I/O.

Each transport combines with `combine` and cuts with `bounds`, so that all agree; `reference` is a whole
collective in one place, which central reduction runs and tests compare with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from psframework import backend
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat
from psframework.errors import ArgumentError

Arrays: TypeAlias = Mapping[int, Flat | None]
"""What each rank sends or receives, by rank; None where it has nothing to do with it."""

BLOCK: Final = 1 << 16
"""Elements that are combined at once, so that the running sum stays in the cache."""

_UFUNCS: Final[dict[ReduceOp, np.ufunc]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
_FLOAT32: Final = np.dtype("float32")


def combine(op: ReduceOp, parts: Sequence[Flat], size: int, out: Flat | None = None) -> Flat:
    """Combines arrays of equal length in the order in which they are given: that of the ranks.

    It is computed in the arrays' dtype; in float32 for float16 and bfloat16, rounded once. Where the arrays
    are cut has no influence on a bit of the result; but where a NaN meets another one, which has another sign
    or payload, on which of them it is.

    Args:
        op: the reduction.
        parts: the array of each rank, at least one. Some may be sums in float32 of 16-bit ones.
        size: what AVG divides by; 1 leaves the sum.
        out: where the result goes; may be one of `parts`. None: a new array.

    Returns:
        `out`.
    """
    first = parts[0]
    out = np.empty_like(first) if out is None else out
    narrow = backend.is_narrow(out.dtype) or any(backend.is_narrow(part.dtype) for part in parts)
    with np.errstate(all="ignore"):  # an overflow is an infinity, as in every other sum of arrays
        if narrow or len(parts) > 2:
            scratch = np.empty(min(BLOCK, len(out)), _FLOAT32 if narrow else out.dtype)
            for start in range(0, len(out), BLOCK):
                cut = slice(start, start + BLOCK)
                _combine_block(op, [part[cut] for part in parts], size, scratch, out[cut])
            return out
        if len(parts) == 2:
            _apply(op, first, parts[1], out)
        elif out is not first:
            np.copyto(out, first)
        if op is ReduceOp.AVG and size > 1:
            np.divide(out, size, out=out)
    return out


def _combine_block(op: ReduceOp, parts: list[Flat], size: int, scratch: Flat, out: Flat) -> None:
    """`out` is written last, since it may be one of `parts`."""
    total = scratch[: len(out)]
    np.copyto(total, parts[0])
    for part in parts[1:]:
        # float32 and float16 would do; NumPy knows no sum of float32 and bfloat16
        _apply(op, total, part if part.dtype == total.dtype else part.astype(total.dtype), total)
    if op is ReduceOp.AVG and size > 1:
        np.divide(total, size, out=total)
    np.copyto(out, total, casting="unsafe")


def _apply(op: ReduceOp, a: Flat, b: Flat, out: Flat) -> None:
    if len(out) == 1:  # NumPy rounds the product of two single complex numbers differently if it is in place
        out[...] = _UFUNCS[op](a, b)
    else:
        _UFUNCS[op](a, b, out=out)


def bounds(n: int, size: int) -> list[int]:
    """The `size + 1` borders of the parts of `n` elements: those of `np.array_split`."""
    each, more = divmod(n, size)
    return [rank * each + min(rank, more) for rank in range(size + 1)]


def reference(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    """A whole collective of `size` ranks.

    Args:
        descriptor: what they do; the root's, where only that one knows dtype and shape.
        sends: what `Work.send` is on each rank.
        size: number of ranks.

    Returns:
        What `Work.receive` is on each rank afterwards; new arrays.

    Raises:
        ArgumentError: not an operation of all ranks.
    """
    compute = _REFERENCES.get(descriptor.operation)
    if compute is None:
        raise ArgumentError(f"{descriptor.operation.name.lower()} is no operation of all ranks")
    return compute(descriptor, sends, size)


def _reduced(descriptor: Descriptor, sends: Arrays, size: int) -> Flat:
    if descriptor.op is None:
        raise ArgumentError(f"{descriptor} needs a reduction")
    return combine(descriptor.op, _all(sends, size), size)


def _all(sends: Arrays, size: int) -> list[Flat]:
    return [_given(sends, rank) for rank in range(size)]


def _given(sends: Arrays, rank: int) -> Flat:
    array = sends.get(rank)
    if array is None:
        raise ArgumentError(f"rank {rank} gave no array")
    return array


def _split(array: Flat, size: int) -> list[Flat]:
    borders = bounds(len(array), size)
    return [array[start:stop] for start, stop in itertools.pairwise(borders)]


def _only(rank: int, size: int, array: Flat) -> dict[int, Flat | None]:
    return {each: array if each == rank else None for each in range(size)}


def _all_reduce(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    total = _reduced(descriptor, sends, size)
    return {rank: total.copy() for rank in range(size)}


def _broadcast(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    array = _given(sends, descriptor.root)
    return {rank: None if rank == descriptor.root else array.copy() for rank in range(size)}


def _reduce(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    return _only(descriptor.root, size, _reduced(descriptor, sends, size))


def _all_gather(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    return {rank: np.concatenate(_all(sends, size)) for rank in range(size)}


def _gather(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    return _only(descriptor.root, size, np.concatenate(_all(sends, size)))


def _scatter(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    return {rank: part.copy() for rank, part in enumerate(_split(_given(sends, descriptor.root), size))}


def _reduce_scatter(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    return {rank: part.copy() for rank, part in enumerate(_split(_reduced(descriptor, sends, size), size))}


def _all_to_all(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    rows = [_split(array, size) for array in _all(sends, size)]
    return {rank: np.concatenate([row[rank] for row in rows]) for rank in range(size)}


def _barrier(descriptor: Descriptor, sends: Arrays, size: int) -> dict[int, Flat | None]:
    return dict.fromkeys(range(size))


_Reference: TypeAlias = Callable[[Descriptor, Arrays, int], dict[int, Flat | None]]
_REFERENCES: Final[dict[Operation, _Reference]] = {
    Operation.ALL_REDUCE: _all_reduce,
    Operation.BROADCAST: _broadcast,
    Operation.REDUCE: _reduce,
    Operation.ALL_GATHER: _all_gather,
    Operation.GATHER: _gather,
    Operation.SCATTER: _scatter,
    Operation.REDUCE_SCATTER: _reduce_scatter,
    Operation.ALL_TO_ALL: _all_to_all,
    Operation.BARRIER: _barrier,
}
