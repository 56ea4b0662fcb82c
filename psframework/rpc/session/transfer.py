"""Payloads on the striped lane: which chunks are still to be sent, and what has arrived. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from psframework.errors import WireError
from psframework.proto.v1.call_pb2 import Chunk as ChunkMessage
from psframework.proto.v1.call_pb2 import TransferState
from psframework.wire import codec
from psframework.wire.chunks import CHUNK_BYTES, Assembly, Chunk, pieces, split
from psframework.wire.memory import Buffer

Key = tuple[int, bool]
"""(number of the call, whether the payload belongs to its reply)."""

Feed = Callable[[int, memoryview], None]
Ranges = Sequence[tuple[int, int]]


class Sending:
    """One payload on its way out; kept until the other end needs it no more.

    Args:
        key: which payload.
        sizes: lengths of all parts in bytes.
        parts: the parts; None if they come one by one, by `add`.

    Attributes:
        number: the frame that announced it.
    """

    def __init__(self, key: Key, sizes: Sequence[int], parts: Sequence[Buffer] | None) -> None:
        self.key = key
        self.number = 0
        self._starts = [0, *accumulate(sizes)]
        self._parts: list[Buffer | None] = [None] * len(sizes) if parts is None else list(parts)
        self._chunks: deque[Chunk] = deque(() if parts is None else split(sizes))
        self.backlog = sum(chunk.nbytes for chunk in self._chunks)

    @property
    def has_chunks(self) -> bool:
        """Whether something can be sent now."""
        return bool(self._chunks)

    @property
    def is_whole(self) -> bool:
        """Whether all parts were given."""
        return all(part is not None for part in self._parts)

    def add(self, index: int, part: Buffer) -> None:
        """One more part is ready. WireError if it is not a part that was announced."""
        size = self._starts[index + 1] - self._starts[index] if 0 <= index < len(self._parts) else -1
        if memoryview(part).nbytes != size or self._parts[index] is not None:
            raise WireError(f"part {index} of {len(self._parts)}: made twice, or not of its announced size")
        self._parts[index] = part
        self._queue(index, 0, size)

    def restart(self, missing: Ranges | None = None) -> None:
        """A new connection: sends what the other end misses (None: everything), as far as it is ready."""
        self._chunks.clear()
        self.backlog = 0
        last = 0  # no byte is missing twice: who says so could have us queue any number of chunks
        for begin, end in [(0, self._starts[-1])] if missing is None else missing:
            if not last <= begin <= end <= self._starts[-1]:
                raise WireError(f"bytes {begin} to {end} are missing of {self._starts[-1]}, after {last}")
            last = end
            part = bisect_right(self._starts, begin) - 1
            while begin < end:
                stop = min(end, self._starts[part + 1])
                if stop > begin and self._parts[part] is not None:
                    self._queue(part, begin - self._starts[part], stop - begin)
                begin, part = stop, part + 1

    def next_message(self) -> bytes:
        """The next chunk, encoded: the one copy that is made on the way out."""
        chunk = self._pop()
        call, reply = self.key
        head = ChunkMessage(call=call, reply=reply, part=chunk.part, offset=chunk.offset)
        head.padding = _padding(head.ByteSize())
        return codec.encode(head, pieces(self._parts, chunk))  # type: ignore[arg-type]

    def next_pieces(self) -> tuple[Key, Chunk, list[memoryview]]:
        """The next chunk, and views of its bytes where they lie."""
        chunk = self._pop()
        return self.key, chunk, pieces(self._parts, chunk)  # type: ignore[arg-type]

    def _pop(self) -> Chunk:
        chunk = self._chunks.popleft()
        self.backlog -= chunk.nbytes
        return chunk

    def _queue(self, part: int, offset: int, nbytes: int) -> None:
        self.backlog += nbytes
        for start in range(offset, offset + nbytes, CHUNK_BYTES):
            self._chunks.append(Chunk(part, start, min(CHUNK_BYTES, offset + nbytes - start)))


def _padding(head: int) -> bytes:
    """What makes the data begin at a multiple of 16 bytes, after a head of that many and without padding.

    Receivers hand parts over where they lie in the message; Python's bytes begin at such a multiple too. Tag
    and length go before the padding, and before the data: 1 + 1 and 1 + 3 bytes for chunks of 16 KiB and up.
    """
    return bytes(-(head + 6) % 16 or 16)


class Receiving:
    """One payload that is arriving.

    Args:
        assembly: where its bytes go.
        feed: takes each part once it is complete.
        done: called after the last part.
    """

    def __init__(self, assembly: Assembly, feed: Feed, done: Callable[[], None]) -> None:
        self._assembly = assembly
        self._feed = feed
        self._done = done

    def start(self) -> None:
        """Hands over the parts that have no bytes."""
        for part in self._assembly.empty_parts:
            self._feed(part, memoryview(b""))

    def accept(self, part: int, offset: int, data: memoryview) -> bool:
        """Takes one chunk; returns whether the payload is complete with it."""
        return self._completed(self._assembly.accept(part, offset, data))

    def place(self, chunk: Chunk) -> memoryview | None:
        """As `Assembly.place`."""
        return self._assembly.place(chunk)

    def landed(self, chunk: Chunk) -> bool:
        """A chunk is in its place; returns whether the payload is complete with it."""
        return self._completed(self._assembly.landed(chunk))

    def give_up(self, chunk: Chunk) -> None:
        """As `Assembly.give_up`."""
        self._assembly.give_up(chunk)

    def _completed(self, parts: Iterable[int]) -> bool:
        fed = False
        for part in parts:
            self._feed(part, self._assembly.part(part))
            fed = True
        if fed and self._assembly.complete:
            self._done()
            return True
        return False

    def state(self, key: Key) -> TransferState:
        """What is missing, for the other end."""
        call, reply = key
        missing = [edge for hole in self._assembly.holes() for edge in hole]
        return TransferState(call=call, reply=reply, missing=missing)


def read_states(states: Iterable[TransferState]) -> dict[Key, list[tuple[int, int]]]:
    """What the other end misses of each payload that it has begun to receive."""
    found: dict[Key, list[tuple[int, int]]] = {}
    for state in states:
        if len(state.missing) % 2:
            raise WireError("missing ranges must come as begin, end")
        found[state.call, state.reply] = list(zip(state.missing[::2], state.missing[1::2]))
    return found
