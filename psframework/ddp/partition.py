"""Which rank keeps the optimizer's state of which part of a model. No I/O."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psframework.backend import DType, is_narrow
from psframework.optim.rule import UpdateRule


@dataclass(frozen=True, slots=True)
class Extent:
    """A parameter as a row of units, the smallest pieces that its rule can update by themselves.

    Args:
        units: how many: its elements, its rows, or 1, by the rule's grain.
        unit: elements of one.
        itemsize: bytes of an element.
        state: bytes of state of one unit.
        dtype: of the parameter.
    """

    units: int
    unit: int
    itemsize: int
    state: int
    dtype: DType

    @classmethod
    def of(cls, rule: UpdateRule, shape: tuple[int, ...], dtype: DType) -> Extent:
        """As a rule sees a parameter."""
        size = math.prod(shape)
        rows = shape[0] if shape else 1
        units = {"element": size, "row": rows, "parameter": 1}[rule.grain] if size else 0
        slot_size = 4 if is_narrow(dtype) else dtype.itemsize
        slots = [math.prod(rule.slot_shape(name, shape)) for name in rule.slot_values(dtype)]
        state = sum(slots) * slot_size // units if units else 0
        return cls(units, size // units if units else 0, dtype.itemsize, state, dtype)


@dataclass(frozen=True, slots=True)
class Piece:
    """Units of one parameter that one rank keeps.

    Args:
        index: of the parameter.
        first: its first unit.
        last: the one after its last.
        offset: in bytes, where the piece is among all that the rank has to give to the others.
    """

    index: int
    first: int
    last: int
    offset: int


def partition(extents: Sequence[Extent], size: int) -> list[list[Piece]]:
    """The pieces of each rank, so that ranks keep equally many bytes of state; the same on all ranks.

    Parameters that can be cut are laid end to end, those of each dtype by themselves, and cut into equal
    parts. Others go whole, the largest first, to the rank that has least.

    Args:
        extents: of the parameters.
        size: number of ranks.
    """
    whole = [index for index, extent in enumerate(extents) if extent.units <= 1]
    divisible = [index for index, extent in enumerate(extents) if extent.units > 1]
    shares: list[list[tuple[int, int, int]]] = [[] for _ in range(size)]
    loads = [0] * size
    for _, line in itertools.groupby(
        sorted(divisible, key=lambda index: str(extents[index].dtype)), lambda index: extents[index].dtype
    ):
        for rank, cut in _cut(list(line), extents, size):
            shares[rank].append(cut)
            loads[rank] += (cut[2] - cut[1]) * _weight(extents[cut[0]])
    for index in sorted(whole, key=lambda index: -_weight(extents[index])):
        rank = loads.index(min(loads))
        shares[rank].append((index, 0, extents[index].units))
        loads[rank] += _weight(extents[index])
    return [list(_placed(sorted(share), extents)) for share in shares]


def _weight(extent: Extent) -> int:
    """What a unit counts: its state, or without any (plain SGD) its elements."""
    return extent.state or extent.unit * extent.itemsize


def _cut(
    line: Sequence[int], extents: Sequence[Extent], size: int
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """(rank, (index, first, last)) of parameters laid end to end, cut at the nearest units."""
    total = sum(extents[index].units * _weight(extents[index]) for index in line)
    start, rank = 0, 0
    for index in line:
        units, weight = extents[index].units, _weight(extents[index])
        first = 0
        while first < units:
            border = total * (rank + 1) // size
            last = units if rank == size - 1 else min(units, max(first, round((border - start) / weight)))
            if last > first:
                yield rank, (index, first, last)
            if last < units:
                rank += 1
            first = last
        start += units * weight


def _placed(share: Sequence[tuple[int, int, int]], extents: Sequence[Extent]) -> Iterator[Piece]:
    offset = 0
    for index, first, last in share:
        yield Piece(index, first, last, offset)
        offset += (last - first) * extents[index].unit * extents[index].itemsize


def nbytes(share: Sequence[Piece], extents: Sequence[Extent]) -> int:
    """Bytes of the parameters' pieces."""
    return sum(
        (piece.last - piece.first) * extents[piece.index].unit * extents[piece.index].itemsize
        for piece in share
    )
