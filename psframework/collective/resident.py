"""Resident arrays: they live in memory that all ranks of a host map, and are reduced there, in place.

Each has a segment of its own, with a region for each rank at mirrored offsets: what is at byte b of one
rank's array is at byte b of the others' regions. So rank r reads part r out of all regions, combines it while
it is in the cache, and writes the result into all of them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from psframework import backend
from psframework.collective.algorithms import BLOCK, bounds, combine
from psframework.collective.ops import ReduceOp
from psframework.collective.staging import Bytes
from psframework.collective.work import Flat
from psframework.wire.shm import Segment
from psframework.wire.threads import in_thread

Share = Callable[[int], Awaitable[Segment]]
"""Gives all ranks of the host the same new segment, of at least so many bytes; all call it alike."""

_PAGE: Final = 4096
_LINE: Final = 64  # no two ranks write into one cache line
_OFFSET_BITS: Final = 40
_NUMBERS: Final = (1 << 64 - _OFFSET_BITS) - 1  # then they come again, long after


@dataclass(frozen=True, slots=True)
class _Resident:
    """One array.

    Args:
        number: which of the group's; the same on all ranks.
        address: of this rank's region.
        regions: the regions of all ranks, by rank, in a mapping of their own.
    """

    number: int
    address: int
    nbytes: int
    regions: list[Bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array of this rank lies.

    Args:
        key: equal on all ranks if they mean the same bytes; never 0.
        mirrors: the same bytes of all ranks, by rank, as arrays like it.
    """

    key: int
    mirrors: Sequence[Flat]


class Residents:
    """The resident arrays of one rank of a group.

    Args:
        rank, size: among the ranks that share memory.
        share: makes memory for all of them.
    """

    def __init__(self, rank: int, size: int, share: Share) -> None:
        self._rank, self._size, self._share = rank, size, share
        self._made = 0
        self._live: dict[int, _Resident] = {}

    async def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A new array, of zeros; all ranks call this alike, in the same order.

        Its memory goes once the array and all views of it are gone, on all ranks.
        """
        kind = backend.dtype_from_name(backend.dtype_name(dtype))
        nbytes = math.prod(shape) * kind.itemsize
        self._made += 1
        number = self._made
        if nbytes == 0:
            return np.empty(tuple(shape), kind)
        stride = -(-nbytes // _PAGE) * _PAGE
        segment = await self._share(stride * self._size)
        await in_thread(segment.touch)
        regions = [segment.array(rank * stride, (nbytes,), "uint8") for rank in range(self._size)]
        segment.close()  # the mapping lives as long as its arrays
        # An array of its own of this rank's region: it dies with the user's last view, and ends the rest.
        owner = np.frombuffer(regions[self._rank].data, np.uint8)
        self._live[number] = _Resident(number, owner.ctypes.data, nbytes, regions)
        weakref.finalize(owner, self._live.pop, number, None).atexit = False
        return owner.view(kind).reshape(tuple(shape))

    def find(self, array: Flat) -> Place | None:
        """Where an array lies, if it is one of these or a contiguous part of one."""
        if not self._live:
            return None
        address = array.ctypes.data
        for each in list(self._live.values()):  # arrays die in any thread, at any moment
            start = address - each.address
            if start >= 0 and start + array.nbytes <= each.nbytes:
                stop = start + array.nbytes
                mirrors = [region[start:stop].view(array.dtype) for region in each.regions]
                return Place(1 + each.number % _NUMBERS << _OFFSET_BITS | start, mirrors)
        return None


class InPlace:
    """ALL_REDUCE of arrays that all ranks map: nothing is copied in or out. An `Exchange` of two rounds.

    Args:
        rank: this process's.
        mirrors: the arrays of all ranks.
        op: the reduction.
    """

    rounds = 2  # the second is a barrier: all parts are written

    def __init__(self, rank: int, mirrors: Sequence[Flat], op: ReduceOp) -> None:
        self._rank, self._mirrors, self._op = rank, mirrors, op

    def fill(self, turn: int) -> int:
        """Nothing: the data are where all can read them."""
        return 0

    def drain(self, turn: int) -> None:
        """Combines this rank's part, and writes it into all arrays."""
        if turn > 0:
            return
        own, size = self._mirrors[self._rank], len(self._mirrors)
        step = _LINE // math.gcd(_LINE, own.itemsize)  # elements of whole cache lines
        borders = bounds(-(-len(own) // step), size)
        stop = min(borders[self._rank + 1] * step, len(own))
        for start in range(borders[self._rank] * step, stop, BLOCK):
            cut = slice(start, min(start + BLOCK, stop))
            combine(self._op, [each[cut] for each in self._mirrors], size, own[cut])
            for rank, mirror in enumerate(self._mirrors):
                if rank != self._rank:
                    np.copyto(mirror[cut], own[cut])
