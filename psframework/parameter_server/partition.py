"""Partitioners: which shard holds which part of a model's arena. Pure and deterministic.

A partitioner gives each run of the arena to a shard. The runs are then cut into virtual partitions of at most
1 MiB, the unit of state, version and dedupe; small neighbours on one shard share a partition.
Names and meaning follow tf.distribute.experimental.partitioners.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from psframework.backend import dtype_from_name
from psframework.errors import ArgumentError
from psframework.parameter_server.layout import ALIGNMENT, Field, Layout

PARTITION_BYTES = 1 << 20
MAX_PARTITIONS = 1 << 17
"""Largest number of partitions of one model: 128 GiB at their full size."""

CUT_ANYWHERE = "a parameter server cuts parameters anywhere"
"""Why its update rules must be elementwise."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A virtual partition.

    Args:
        index: its number in the model, never reused.
        dtype: name of its elements' dtype.
        offset: its first byte in the arena.
        size: number of elements.
        shard: position of its shard in the list of shards.
    """

    index: int
    dtype: str
    offset: int
    size: int
    shard: int

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * dtype_from_name(self.dtype).itemsize

    @property
    def stop(self) -> int:
        """First byte after it in the arena."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes [start, stop) of the arena, of one dtype, for one shard."""

    dtype: str
    start: int
    stop: int
    shard: int


class Partitioner(ABC):
    """Gives runs of the arena to shards. Subclasses are frozen dataclasses; `spec()` describes them."""

    name: ClassVar[str]

    @abstractmethod
    def runs(self, layout: Layout, shards: int) -> Iterator[Run]:
        """Runs that cover the arena, in its order; borders on multiples of 64 bytes."""

    def spec(self) -> dict[str, Any]:
        """The partitioner as JSON-able values; `partitioner_from_spec` inverts."""
        return {"name": self.name} | dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def cut(self, layout: Layout, shards: int) -> tuple[Partition, ...]:
        """The virtual partitions of a model.

        Args:
            layout: its arena.
            shards: number of shards, at least 1.

        Raises:
            ArgumentError: no shard, or more than `MAX_PARTITIONS` partitions.
        """
        if shards < 1:
            raise ArgumentError("a model needs at least one parameter-server shard")
        partitions: list[Partition] = []
        for run in _merged(self.runs(layout, shards)):
            item = dtype_from_name(run.dtype).itemsize
            count = -(-(run.stop - run.start) // PARTITION_BYTES)
            _check_count(len(partitions) + count)
            for start, stop in _even(run.start, run.stop, count):
                partitions.append(
                    Partition(len(partitions), run.dtype, start, (stop - start) // item, run.shard)
                )
        return tuple(partitions)


def _merged(runs: Iterator[Run]) -> Iterator[Run]:
    held: Run | None = None
    for run in runs:
        if run.start == run.stop:
            continue
        if held and (held.dtype, held.shard, held.stop) == (run.dtype, run.shard, run.start):
            held = Run(run.dtype, held.start, run.stop, run.shard)
            continue
        if held:
            yield held
        held = run
    if held:
        yield held


def _even(start: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
    """Cuts [start, stop) into at most `count` pieces of nearly equal length, on multiples of 64 bytes."""
    _check_count(count)
    lines = -(-(stop - start) // ALIGNMENT)
    borders = [start + lines * i // count * ALIGNMENT for i in range(count)] + [stop]
    yield from ((a, b) for a, b in itertools.pairwise(borders) if a < b)


@dataclass(frozen=True, slots=True)
class Balanced(Partitioner):
    """The default: each shard gets one run of the arena, all of nearly the same length."""

    name: ClassVar[str] = "balanced"

    def runs(self, layout: Layout, shards: int) -> Iterator[Run]:
        borders = [stop for _, stop in _even(0, layout.nbytes, shards)]
        for field in layout.fields:
            start, stop = field.offset, field.offset + field.span
            for shard, border in enumerate(borders):
                end = min(stop, border)
                if start < end:
                    yield Run(field.spec.dtype, start, end, shard)
                    start = end


class _ByPieces(Partitioner):
    """Cuts each parameter, and gives each piece to the shard with the fewest bytes so far."""

    @abstractmethod
    def pieces(self, nbytes: int) -> int:
        """Into how many pieces a parameter of `nbytes` bytes is cut."""

    def runs(self, layout: Layout, shards: int) -> Iterator[Run]:
        load = [0] * shards
        for field in layout.fields:
            count = max(1, min(self.pieces(field.spec.nbytes), max(1, field.spec.size)))
            for start, stop in _even(field.offset, field.offset + field.span, count):
                shard = load.index(min(load))
                load[shard] += stop - start
                yield Run(field.spec.dtype, start, stop, shard)


@dataclass(frozen=True, slots=True)
class FixedShards(_ByPieces):
    """Cuts each parameter into `shards` pieces."""

    name: ClassVar[str] = "fixed-shards"
    shards: int

    def __post_init__(self) -> None:
        _at_least_one("FixedShards", "shards", self.shards)

    def pieces(self, nbytes: int) -> int:
        return self.shards


@dataclass(frozen=True, slots=True)
class MinSize(_ByPieces):
    """Cuts each parameter into at most `max_shards` pieces of at least `min_shard_bytes` bytes each."""

    name: ClassVar[str] = "min-size"
    min_shard_bytes: int = 256 << 10
    max_shards: int = 1

    def __post_init__(self) -> None:
        _at_least_one("MinSize", "min_shard_bytes", self.min_shard_bytes)
        _at_least_one("MinSize", "max_shards", self.max_shards)

    def pieces(self, nbytes: int) -> int:
        return min(self.max_shards, nbytes // self.min_shard_bytes)


@dataclass(frozen=True, slots=True)
class MaxSize(_ByPieces):
    """Cuts each parameter into pieces of at most `max_shard_bytes` bytes, at most `max_shards` of them."""

    name: ClassVar[str] = "max-size"
    max_shard_bytes: int
    max_shards: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("MaxSize", "max_shard_bytes", self.max_shard_bytes)
        if self.max_shards is not None:
            _at_least_one("MaxSize", "max_shards", self.max_shards)

    def pieces(self, nbytes: int) -> int:
        wanted = -(-nbytes // self.max_shard_bytes)
        return wanted if self.max_shards is None else min(wanted, self.max_shards)


@dataclass(frozen=True, slots=True)
class Hash(Partitioner):
    """Each parameter stays whole, on the shard that its name's CRC-32 picks."""

    name: ClassVar[str] = "hash"

    def runs(self, layout: Layout, shards: int) -> Iterator[Run]:
        for field in layout.fields:
            shard = zlib.crc32(field.spec.name.encode()) % shards
            yield Run(field.spec.dtype, field.offset, field.offset + field.span, shard)


_KINDS: dict[str, type[Partitioner]] = {
    kind.name: kind for kind in (Balanced, FixedShards, MinSize, MaxSize, Hash)
}


def partitioner_from_spec(spec: Mapping[str, Any]) -> Partitioner:
    """The partitioner that `spec()` described; ArgumentError if there is none such."""
    values = dict(spec)
    kind = _KINDS.get(str(values.pop("name", None)))
    if kind is None:
        raise ArgumentError(f"unknown partitioner {spec.get('name')!r}; known: {', '.join(_KINDS)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ArgumentError(f"partitioner {kind.name}: {error}") from None


def covered(field: Field, partitions: tuple[Partition, ...]) -> tuple[Partition, ...]:
    """The partitions that hold a part of a parameter, in order."""
    start, stop = field.offset, field.offset + field.span
    return tuple(p for p in partitions if p.offset < stop and p.stop > start)


def _check_count(count: int) -> None:
    """A length that came over the network must not fill the coordinator's memory."""
    if count > MAX_PARTITIONS:
        raise ArgumentError(
            f"the model would have {count} partitions; {MAX_PARTITIONS} are possible (of at most 1 MiB each)"
        )


def _at_least_one(where: str, field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{where}: {field} must be an integer of at least 1, not {value!r}")
