"""Where values lie: arenas give several partitions at once, parts one; wrong lengths are wire errors."""

import numpy as np
import pytest

from psframework.errors import WireError
from psframework.parameter_server.partition import Partition
from psframework.parameter_server.sources import Arena, Parts, Piece, part_array
from psframework.wire.compress import Compression

PARTITIONS = (
    Partition(0, "float32", 0, 16, 0),
    Partition(2, "float32", 128, 32, 0),
    Partition(3, "float64", 256, 8, 0),
)


def test_a_packed_arena_has_no_gaps():
    memory = np.arange(16 + 32, dtype=np.float32)
    arena = Arena.packed(PARTITIONS[:2], memory.view(np.uint8).data)
    assert np.array_equal(arena.array(Piece(0, 2, "float32", 48)), memory)
    assert Arena.packed(PARTITIONS).nbytes == 64 + 128 + 64
    assert not Arena.packed(PARTITIONS).array(Piece(2, 3, "float64", 8)).any()


def test_a_model_arena_has_the_models_offsets_and_is_shared():
    memory = np.zeros(320, np.uint8)
    arena = Arena.of_model(PARTITIONS, memory.data)
    arena.array(Piece(1, 2, "float32", 32))[...] = 1
    assert memory[128:256].view(np.float32).sum() == 32
    assert memory[:128].sum() == 0


def test_a_short_arena_is_refused():
    with pytest.raises(WireError, match="arena of 319 bytes"):
        Arena.of_model(PARTITIONS, bytes(319))


def test_parts_may_be_narrower_but_not_shorter():
    half = np.arange(16, dtype=np.float16)
    array = part_array(half.tobytes(), PARTITIONS[0], Compression.FP16)
    assert np.array_equal(Parts({0: array}).array(Piece(0, 1, "float32", 16)), half)
    with pytest.raises(WireError, match="partition 0 came with 32 bytes"):
        part_array(half.tobytes(), PARTITIONS[0])
