"""Cutting payloads and putting them together: every order, resent pieces, sizes that lie."""

import random
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import ArgumentError, WireError
from psframework.wire.chunks import Assembly, Chunk, check_sizes, pieces, split
from psframework.wire.memory import BufferPool
from psframework.wire.spec import as_bytes

sizes_lists = st.lists(st.integers(0, 40), max_size=12)


def payload(sizes):
    """Parts of these sizes, all bytes of them different where possible."""
    counter = iter(range(10**9))
    return [bytes(next(counter) % 251 for _ in range(size)) for size in sizes]


def test_split_literally():
    assert list(split([5, 0, 3], 2)) == [
        Chunk(0, 0, 2),
        Chunk(0, 2, 2),
        Chunk(0, 4, 1),
        Chunk(2, 0, 2),
        Chunk(2, 2, 1),
    ]
    assert list(split([1, 1, 0, 2, 3], 4)) == [Chunk(0, 0, 4), Chunk(4, 0, 3)]
    assert list(split([])) == list(split([0, 0])) == []
    assert list(split([9], 3)) == [Chunk(0, 0, 3), Chunk(0, 3, 3), Chunk(0, 6, 3)]


def test_a_thousand_tiny_parts_travel_in_one_chunk():
    assert list(split([256] * 1000)) == [Chunk(0, 0, 256_000)]


def test_sizes_over_2_gib_are_cut_exactly():
    size = 2_254_857_831
    chunks = list(split([size, 10]))
    assert sum(chunk.nbytes for chunk in chunks) == size + 10
    assert chunks[-2] == Chunk(0, size - size % (1 << 20), size % (1 << 20))
    assert len(chunks) == -(-size // (1 << 20)) + 1


def test_a_chunk_must_have_a_size():
    with pytest.raises(ArgumentError):
        list(split([1], 0))


@given(sizes_lists, st.integers(1, 17), st.randoms(use_true_random=False))
def test_any_order_with_resent_chunks_arrives_whole(sizes, chunk_bytes, rng):
    parts = payload(sizes)
    chunks = list(split(sizes, chunk_bytes))
    assert all(chunk.nbytes <= chunk_bytes for chunk in chunks)
    deliveries = chunks + rng.sample(chunks, len(chunks) // 2)
    rng.shuffle(deliveries)
    assembly = Assembly(sizes)
    completed = [
        part
        for chunk in deliveries
        for part in assembly.accept(chunk.part, chunk.offset, b"".join(pieces(parts, chunk)))
    ]
    assert assembly.complete
    assert assembly.received == sum(sizes)
    assert [bytes(view) for view in assembly.parts()] == parts
    assert sorted(completed + assembly.empty_parts) == list(range(len(sizes)))
    assert assembly.holes() == []


@given(
    sizes_lists,
    st.lists(st.tuples(st.integers(-1, 13), st.integers(-1, 50), st.binary(max_size=30)), max_size=20),
)
def test_any_chunk_is_stored_or_refused(sizes, deliveries):
    """Against the plainest model: a line of bytes where the first writer of a byte wins."""
    assembly = Assembly(sizes)
    line: list[int | None] = [None] * sum(sizes)
    for part, offset, data in deliveries:
        try:
            assembly.accept(part, offset, data)
        except WireError:
            inside = 0 <= part < len(sizes) and 0 <= offset <= sizes[part]
            assert not inside or sum(sizes[:part]) + offset + len(data) > len(line)
            continue
        begin = sum(sizes[:part]) + offset
        for place, byte in enumerate(data, begin):
            line[place] = byte if line[place] is None else line[place]
    assert assembly.received == sum(byte is not None for byte in line)
    holes = {place for low, high in assembly.holes() for place in range(low, high)}
    assert holes == {place for place, byte in enumerate(line) if byte is None}
    whole = b"".join(assembly.parts())
    assert all(byte is None or whole[place] == byte for place, byte in enumerate(line))


def test_parts_complete_one_by_one_and_once():
    assembly = Assembly([3, 2, 0, 1])
    assert assembly.empty_parts == [2]
    assert assembly.accept(1, 0, b"de") == [1]
    assert assembly.accept(0, 0, b"ab") == []
    assert not assembly.complete
    assert assembly.holes() == [(2, 3), (5, 6)]
    assert assembly.accept(0, 1, b"bcdef") == [0, 3]
    assert assembly.accept(0, 0, b"abcdef") == []
    assert [bytes(part) for part in assembly.parts()] == [b"abc", b"de", b"", b"f"]


def test_receives_into_the_buffers_given():
    buffers = [memoryview(bytearray(3)), memoryview(bytearray(2))]
    assembly = Assembly([3, 2], into=buffers)
    assembly.accept(0, 0, b"abcde")
    assert bytes(buffers[0]) == b"abc"
    assert bytes(buffers[1]) == b"de"
    with pytest.raises(ArgumentError, match="announced sizes"):
        Assembly([3, 3], into=buffers)


def test_receives_into_a_pool():
    pool = BufferPool()
    assembly = Assembly([1 << 20], allocate=pool.take)
    assembly.accept(0, 0, b"x" * (1 << 20))
    assert pool.idle_bytes == 0
    del assembly
    assert pool.idle_bytes == 1 << 20


@pytest.mark.parametrize(
    "sizes", [[10 << 30], [1 << 62, 1 << 62], [4 << 30] * 3, [-1], [0] * ((1 << 20) + 1)]
)
def test_sizes_that_lie_are_refused_before_any_allocation(sizes):
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            Assembly(sizes)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_announcement_alone_allocates_nothing():
    tracemalloc.start()
    try:
        assembly = Assembly([1 << 30] * 4)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert assembly.total == 4 << 30


def test_the_receivers_own_bound_counts():
    assert check_sizes([5, 5], max_bytes=10) == (5, 5)
    with pytest.raises(WireError, match="at most 9"):
        check_sizes([5, 5], max_bytes=9)


def test_scattered_pieces_are_bounded():
    assembly = Assembly([1 << 20])
    places = list(range(0, 2 * 65_536, 2))
    random.Random(0).shuffle(places)
    for place in places:
        assembly.accept(0, place, b"x")
    with pytest.raises(WireError, match="scattered"):
        assembly.accept(0, 2 * 65_536, b"x")
    assert assembly.accept(0, 0, b"x" * (1 << 20)) == [0]


@given(sizes_lists, st.integers(1, 9), st.randoms())
def test_chunks_that_land_in_place_make_the_same_payload(sizes, chunk_bytes, chance):
    parts, assembly, completed = payload(sizes), Assembly(sizes), []
    chunks = list(split(sizes, chunk_bytes)) * 2
    chance.shuffle(chunks)
    flying = []
    while chunks or flying:
        if chunks and (not flying or chance.random() < 0.5):
            chunk = chunks.pop()
            data = b"".join(pieces(parts, chunk))
            if any(chunk == other for other, _, _ in flying):
                with pytest.raises(WireError, match="twice at the same time"):
                    assembly.place(chunk)
                chunks.insert(0, chunk)
                continue
            place = assembly.place(chunk)
            if place is None:
                completed += assembly.accept(chunk.part, chunk.offset, data)
            elif chance.random() < 0.2:
                assembly.give_up(chunk)
                chunks.append(chunk)
            else:
                flying.append((chunk, place, data))
        else:
            chunk, place, data = flying.pop(chance.randrange(len(flying)))
            place[:] = data
            completed += assembly.landed(chunk)
    assert assembly.complete and [bytes(part) for part in assembly.parts()] == parts
    assert sorted(completed) == [part for part, size in enumerate(sizes) if size]


def test_no_place_where_bytes_have_come_or_are_coming():
    assembly = Assembly([10, 10])
    assert len(assembly.place(Chunk(0, 2, 4))) == 4
    with pytest.raises(WireError, match="twice at the same time"):
        assembly.place(Chunk(0, 5, 2))
    with pytest.raises(WireError, match="twice at the same time"):
        assembly.accept(0, 0, b"abcdefghij")  # it would complete a part that is still written to
    assert assembly.place(Chunk(0, 8, 4)) is None  # it spans parts
    assert assembly.received == 0
    assert assembly.landed(Chunk(0, 2, 4)) == [] and assembly.received == 4
    assert assembly.place(Chunk(0, 1, 2)) is None
    assert assembly.place(Chunk(0, 0, 2)) is not None and assembly.place(Chunk(0, 6, 4)) is not None
    assembly.give_up(Chunk(0, 0, 2))
    assert assembly.place(Chunk(0, 0, 2)) is not None
    assert assembly.landed(Chunk(0, 0, 2)) == [] and assembly.landed(Chunk(0, 6, 4)) == [0]
    with pytest.raises(WireError, match="no such place"):
        assembly.place(Chunk(2, 0, 1))
    with pytest.raises(WireError, match="are left"):
        assembly.place(Chunk(1, 5, 6))


@pytest.mark.soak
def test_more_than_2_gib_arrives_with_its_checksum():
    array = np.arange(2_254_857_831 // 8, dtype=np.uint64)
    view = as_bytes(array)
    assembly = Assembly([view.nbytes])
    for chunk in split([view.nbytes]):
        (piece,) = pieces([view], chunk)
        assembly.accept(chunk.part, chunk.offset, piece)
    assert assembly.complete
    assert zlib.crc32(assembly.part(0)) == zlib.crc32(view)
