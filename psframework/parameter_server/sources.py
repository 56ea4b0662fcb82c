"""Where the values of partitions lie: in one run of memory, or in parts that arrived one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from psframework.backend import Array, dtype_from_name
from psframework.errors import WireError
from psframework.parameter_server.partition import Partition
from psframework.wire.compress import Compression, wire_dtype
from psframework.wire.memory import Buffer


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring partitions of one dtype, without a gap between them.

    Args:
        start: position of the first.
        stop: position after the last.
        dtype: name of the dtype.
        size: number of elements of all.
    """

    start: int
    stop: int
    dtype: str
    size: int


class Source(ABC):
    """Values of some partitions of one shard, by position in the shard's list."""

    joins = False
    """Whether a piece of several partitions may be asked for."""

    @property
    def owned_bytes(self) -> int:
        """Bytes of memory that nobody else accounts for."""
        return 0

    @abstractmethod
    def array(self, piece: Piece) -> Array:
        """The values of a piece, 1-D, shared with the memory behind."""


class Arena(Source):
    """Partitions in one run of memory.

    Args:
        memory: the bytes.
        offsets: first byte of each partition in it, by position.
    """

    joins = True

    def __init__(self, memory: Buffer, offsets: Sequence[int]) -> None:
        self._memory = np.frombuffer(memory, np.uint8)
        self.offsets = offsets

    @classmethod
    def packed(cls, partitions: Sequence[Partition], memory: Buffer | None = None) -> Arena:
        """Partitions one after the other, without gaps; in new, zeroed memory if none is given."""
        offsets, total = [], 0
        for partition in partitions:
            offsets.append(total)
            total += partition.nbytes
        return cls(memory if memory is not None else np.zeros(total, np.uint8).data, offsets)

    @classmethod
    def of_model(cls, partitions: Sequence[Partition], memory: Buffer) -> Arena:
        """Partitions at their places in the arena of the whole model."""
        end = max((p.stop for p in partitions), default=0)
        if len(memory) < end:
            raise WireError(f"an arena of {len(memory)} bytes; the model's partitions reach to {end}")
        return cls(memory, [p.offset for p in partitions])

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return int(self._memory.nbytes)

    def array(self, piece: Piece) -> Array:
        start = self.offsets[piece.start]
        dtype = dtype_from_name(piece.dtype)
        return self._memory[start : start + piece.size * dtype.itemsize].view(dtype)


class Parts(Source):
    """Partitions that came one by one.

    Args:
        arrays: by position, 1-D; of the partition's size, perhaps of a narrower dtype.
    """

    def __init__(self, arrays: Mapping[int, Array]) -> None:
        self._arrays = arrays

    @property
    def owned_bytes(self) -> int:
        return sum(int(array.nbytes) for array in self._arrays.values())

    def array(self, piece: Piece) -> Array:
        return self._arrays[piece.start]


def part_array(view: Buffer, partition: Partition, compression: Compression = Compression.NONE) -> Array:
    """A received part as an array; WireError if its length is not the partition's.

    Args:
        view: the bytes.
        partition: what they should be.
        compression: how it was narrowed.
    """
    kind = wire_dtype(dtype_from_name(partition.dtype), compression)
    if len(view) != partition.size * kind.itemsize:
        raise WireError(
            f"partition {partition.index} came with {len(view)} bytes; {partition.size} {kind.name} "
            f"have {partition.size * kind.itemsize}"
        )
    return np.frombuffer(view, np.uint8).view(kind)
