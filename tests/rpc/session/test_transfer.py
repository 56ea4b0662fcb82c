"""The striped lane's books: whatever is lost is sent again, and every byte arrives once."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.errors import WireError
from psframework.proto.v1.call_pb2 import Chunk, TransferState
from psframework.rpc.session.transfer import Receiving, Sending, read_states
from psframework.wire import codec
from psframework.wire.chunks import CHUNK_BYTES, Assembly

KEY = (3, True)


class Sink:
    def __init__(self, sizes: list[int]) -> None:
        self.parts: dict[int, bytes] = {}
        self.complete = 0
        self.receiving = Receiving(Assembly(sizes), self.feed, self.done)
        self.receiving.start()

    def feed(self, index: int, view: memoryview) -> None:
        assert index not in self.parts
        self.parts[index] = bytes(view)

    def done(self) -> None:
        self.complete += 1

    def take(self, message: bytes) -> None:
        chunk, data = codec.decode(message, Chunk)
        assert (chunk.call, chunk.reply) == KEY and 0 < len(data) <= CHUNK_BYTES
        self.receiving.accept(chunk.part, chunk.offset, data)


@settings(deadline=None)  # it moves megabytes, and the machine may be busy
@given(
    st.lists(
        st.sampled_from([0, 1, 77, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3_000_000]), max_size=6
    ),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_all_parts_arrive_whatever_is_lost(sizes: list[int], streamed: bool, seed: int) -> None:
    chance = random.Random(seed)
    parts = [chance.randbytes(size) for size in sizes]
    sending, sink = Sending(KEY, sizes, None if streamed else parts), Sink(sizes)
    waiting = list(enumerate(parts)) if streamed else []
    chance.shuffle(waiting)
    for _ in range(3):  # connections, the last of which loses nothing
        last = _ == 2
        while waiting and (last or chance.random() < 0.7):
            sending.add(*waiting.pop())
        messages = []
        while sending.has_chunks:
            messages.append(sending.next_message())
        chance.shuffle(messages)
        for message in messages if last else messages[: len(messages) // 2]:
            sink.take(message)
        if not last:
            sending.restart(read_states([sink.receiving.state(KEY)])[KEY])
    assert sending.is_whole and sending.backlog == 0
    assert sink.parts == dict(enumerate(parts))
    assert sink.complete == (1 if sum(sizes) else 0)


def test_a_part_is_made_once_and_as_announced() -> None:
    sending = Sending(KEY, [2, 2], None)
    sending.add(0, b"ab")
    for index, part in ((0, b"ab"), (1, b"a"), (2, b"ab"), (-1, b"ab")):
        with pytest.raises(WireError, match="announced"):
            sending.add(index, part)
    assert not sending.is_whole


def test_a_restart_from_the_beginning_and_from_nonsense() -> None:
    sending = Sending(KEY, [4], [b"abcd"])
    sending.next_message()
    sending.restart()
    assert sending.backlog == 4
    with pytest.raises(WireError, match="missing"):
        sending.restart([(0, 5)])
    for twice in ([(0, 2), (1, 4)], [(0, 4)] * 1_000_000, [(2, 4), (0, 2)]):  # each range costs memory here
        with pytest.raises(WireError, match="missing"):
            sending.restart(twice)
    sending.restart([(0, 1), (1, 1), (3, 4)])
    assert sending.backlog == 2
    with pytest.raises(WireError, match="begin, end"):
        read_states([TransferState(call=1, missing=[1])])


@pytest.mark.parametrize("call", [1, 200, 70_000, 1 << 40])
@pytest.mark.parametrize("part", [0, 1])
def test_data_begins_where_arrays_may_begin(call: int, part: int) -> None:
    sizes = [300_000, CHUNK_BYTES]
    sending = Sending((call, True), sizes, [bytes(size) for size in sizes])
    messages = [sending.next_message() for _ in sizes]
    chunk, data = codec.decode(messages[part], Chunk)
    assert chunk.part == part
    assert np.frombuffer(data, np.uint8).ctypes.data % 16 == 0


def test_a_part_that_comes_in_one_chunk_is_not_copied() -> None:
    message = bytes(CHUNK_BYTES)
    assembly = Assembly([CHUNK_BYTES, 10], adopt=True)
    assert assembly.accept(0, 0, memoryview(message)) == [0]
    assert assembly.part(0).obj is message and assembly.part(0).readonly
    assert assembly.accept(0, 0, memoryview(message)) == []
    assert assembly.accept(1, 0, memoryview(message)[:10]) == [1]
    assert assembly.part(1).obj is not message
