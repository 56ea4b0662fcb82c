"""Cutting payloads into chunks and putting them together again; pure state, no I/O.

A payload is a list of *parts* (arrays' bytes) of known sizes, seen as one line of bytes, part after
part. A chunk is a range of that line, named by the part and the offset where it starts; it may run on
into the following parts, so a thousand tiny parts travel in one chunk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from psframework.errors import ArgumentError, WireError
from psframework.wire.memory import Buffer, copy_into, empty

CHUNK_BYTES: Final = 1 << 20
"""Size of a chunk: large enough to be cheap, small enough that no loop stalls over it."""

MAX_TRANSFER: Final = 8 << 30
"""Default bound of one payload: 8 GiB. Services pass their own, lower one."""

MAX_PARTS: Final = 1 << 20
_MAX_HOLES: Final = 65_536
_ADOPT_FROM: Final = 256 * 1024  # a smaller part would keep all of its chunk in memory


@dataclass(frozen=True, slots=True)
class Chunk:
    """One range of a payload.

    Attributes:
        part: index of the part it starts in.
        offset: bytes into that part.
        nbytes: its length; it may reach into the parts that follow.
    """

    part: int
    offset: int
    nbytes: int


def split(sizes: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Cuts parts of these sizes into chunks of at most `chunk_bytes`, in order.

    Small parts are packed: a chunk ends at the end of a part unless whole following parts fit too.
    Empty parts take no chunk of their own. Several stripes may share the iterator: each takes the
    next chunk when it has room, which balances them better than a fixed deal.
    """
    if chunk_bytes < 1:
        raise ArgumentError(f"chunk_bytes={chunk_bytes}; it must be positive")
    first, packed = 0, 0
    for part, size in enumerate(sizes):
        if packed and packed + size > chunk_bytes:
            yield Chunk(first, 0, packed)
            packed = 0
        if size > chunk_bytes:
            for offset in range(0, size, chunk_bytes):
                yield Chunk(part, offset, min(chunk_bytes, size - offset))
        elif size:
            first, packed = (first if packed else part), packed + size
    if packed:
        yield Chunk(first, 0, packed)


def pieces(parts: Sequence[Buffer], chunk: Chunk) -> list[memoryview]:
    """The bytes of a chunk: views into the parts, without a copy."""
    found, part, offset, left = [], chunk.part, chunk.offset, chunk.nbytes
    while left:
        view = memoryview(parts[part])[offset : offset + left]
        found.append(view)
        part, offset, left = part + 1, 0, left - len(view)
    return [view for view in found if len(view)]


class Assembly:
    """A payload being received: takes chunks in any order, over any number of streams.

    Nothing is allocated for a part before its first byte arrives, and sizes are checked when the
    assembly is made. A byte that came already is ignored, so a resent chunk does no harm.

    Args:
        sizes: bytes of each part, as the peer announced them.
        max_bytes: most bytes that the parts may have together.
        into: buffers to receive into, one a part, of exactly these sizes; None allocates.
        allocate: makes a buffer of n bytes (`BufferPool.take` to reuse memory).
        adopt: what is given to `accept` will not change, so a large part that comes in one chunk is kept as
            it is, without a copy (and read-only).

    Raises:
        WireError: the sizes are too many, negative, or larger than `max_bytes` together.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        max_bytes: int = MAX_TRANSFER,
        into: Sequence[memoryview] | None = None,
        allocate: Callable[[int], memoryview] = empty,
        adopt: bool = False,
    ) -> None:
        self.sizes = check_sizes(sizes, max_bytes=max_bytes)
        self._starts = [0, *accumulate(self.sizes)]
        self._missing = list(self.sizes)
        self._allocate = allocate
        self._adopt = adopt
        self._buffers: list[memoryview | None] = [None] * len(self.sizes)
        if into is not None:
            if tuple(len(buffer) for buffer in into) != self.sizes:
                raise ArgumentError("the buffers to receive into do not have the announced sizes")
            self._buffers = list(into)
        # Ranges received so far on the line of bytes: disjoint, sorted, not touching.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._landing: list[tuple[int, int]] = []
        self.received = 0

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return self._starts[-1]

    @property
    def complete(self) -> bool:
        """Whether every byte is here."""
        return self.received == self.total

    @property
    def empty_parts(self) -> list[int]:
        """Parts without bytes: complete from the start, `accept` never returns them."""
        return [part for part, size in enumerate(self.sizes) if size == 0]

    def part(self, index: int) -> memoryview:
        """The buffer of one part; complete only if `accept` said so."""
        buffer = self._buffers[index]
        if buffer is None:
            buffer = self._buffers[index] = self._allocate(self.sizes[index])
        return buffer

    def parts(self) -> list[memoryview]:
        """The buffers of all parts, once `complete`."""
        return [self.part(index) for index in range(len(self.sizes))]

    def accept(self, part: int, offset: int, data: Buffer) -> list[int]:
        """Takes one chunk; returns the parts that it completed.

        Raises:
            WireError: the chunk lies outside the payload, or some of it is coming to its `place`.
        """
        view = memoryview(data)
        begin = self._begin(part, offset, view.nbytes)
        self._check_apart(begin, begin + view.nbytes)
        completed: list[int] = []
        for low, high in self._claim(begin, begin + view.nbytes):
            self._store(low, view[low - begin : high - begin], completed)
        return completed

    def place(self, chunk: Chunk) -> memoryview | None:
        """Where the bytes of a chunk are to be received, so that nothing need be copied; then call `landed`.

        None where `accept` must take the chunk: it spans parts, or some of it has come already.

        Raises:
            WireError: as `accept`.
        """
        part, begin = chunk.part, self._begin(chunk.part, chunk.offset, chunk.nbytes)
        end = begin + chunk.nbytes
        self._check_apart(begin, end)
        if chunk.offset + chunk.nbytes > self.sizes[part] or self._has_some(begin, end):
            return None
        self._landing.append((begin, end))
        return self.part(part)[chunk.offset : chunk.offset + chunk.nbytes]

    def landed(self, chunk: Chunk) -> list[int]:
        """The bytes of a chunk are in their `place`; returns the parts that this completed."""
        begin = self._starts[chunk.part] + chunk.offset
        self._landing.remove((begin, begin + chunk.nbytes))
        new = sum(high - low for low, high in self._claim(begin, begin + chunk.nbytes))
        self._missing[chunk.part] -= new
        return [chunk.part] if new and not self._missing[chunk.part] else []

    def give_up(self, chunk: Chunk) -> None:
        """The bytes of a chunk will not come to its `place`; perhaps they come another way."""
        begin = self._starts[chunk.part] + chunk.offset
        self._landing.remove((begin, begin + chunk.nbytes))

    def holes(self) -> list[tuple[int, int]]:
        """Ranges of the line of bytes that have not come yet, as (begin, end)."""
        begins, ends = [*self._begins, self.total], [0, *self._ends]
        return [(low, high) for low, high in zip(ends, begins) if low < high]

    def _begin(self, part: int, offset: int, nbytes: int) -> int:
        """Where a chunk begins on the line of bytes; WireError if it leaves that."""
        if not 0 <= part < len(self.sizes) or not 0 <= offset <= self.sizes[part]:
            raise WireError(f"a chunk at part {part}, offset {offset}: there is no such place")
        begin = self._starts[part] + offset
        if nbytes > self.total - begin:
            raise WireError(f"a chunk of {nbytes} bytes where {self.total - begin} are left")
        return begin

    def _has_some(self, low: int, high: int) -> bool:
        """Whether any of [low, high) has come."""
        first = bisect_right(self._ends, low)
        return first < len(self._begins) and self._begins[first] < high

    def _check_apart(self, low: int, high: int) -> None:
        """Each byte is sent once a connection. One that came twice at the same time could complete a part
        which is then handed over, while its place can still be written to.
        """
        if any(begin < high and low < end for begin, end in self._landing):
            raise WireError(f"bytes {low} to {high} of a payload come twice at the same time")

    def _store(self, low: int, view: memoryview, completed: list[int]) -> None:
        """Copies bytes to place `low` of the line, over as many parts as they span."""
        part, taken, end = bisect_right(self._starts, low) - 1, 0, len(view)
        while taken < end:
            offset = low + taken - self._starts[part]
            here = min(self.sizes[part] - offset, end - taken)
            if here:
                self._store_part(part, offset, view[taken : taken + here])
                self._missing[part] -= here
                if not self._missing[part]:
                    completed.append(part)
            taken, part = taken + here, part + 1

    def _store_part(self, part: int, offset: int, view: memoryview) -> None:
        if self._adopt and len(view) == self.sizes[part] >= _ADOPT_FROM and self._buffers[part] is None:
            self._buffers[part] = view.toreadonly()
            return
        target = self.part(part)
        copy_into(target if len(view) == len(target) else target[offset : offset + len(view)], view)

    def _claim(self, low: int, high: int) -> list[tuple[int, int]]:
        """Marks [low, high) as received and returns the ranges of it that are new."""
        if low == high:
            return []
        first = bisect_left(self._ends, low)
        last = bisect_right(self._begins, high)
        new, cursor = [], low
        for begin, end in zip(self._begins[first:last], self._ends[first:last]):
            if cursor < begin:
                new.append((cursor, begin))
            cursor = max(cursor, end)
        if cursor < high:
            new.append((cursor, high))
        if first < last:
            low, high = min(low, self._begins[first]), max(high, self._ends[last - 1])
        elif len(self._begins) >= _MAX_HOLES:
            raise WireError(f"a payload in more than {_MAX_HOLES} scattered pieces")
        self._begins[first:last], self._ends[first:last] = [low], [high]
        self.received += sum(end - begin for begin, end in new)
        return new


def check_sizes(sizes: Sequence[int], *, max_bytes: int = MAX_TRANSFER) -> tuple[int, ...]:
    """Checks the sizes that a peer announced, before anything is allocated for them.

    Raises:
        WireError: too many parts, a negative size, or more than `max_bytes` together.
    """
    if len(sizes) > MAX_PARTS:
        raise WireError(f"a payload of {len(sizes)} parts; at most {MAX_PARTS} are allowed")
    checked = tuple(sizes)
    if min(checked, default=0) < 0:
        raise WireError("a part of negative size")
    if sum(checked) > max_bytes:
        raise WireError(f"a payload of {sum(checked)} bytes; at most {max_bytes} are allowed")
    return checked
