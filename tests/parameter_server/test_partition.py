"""Partitioners: they cover the arena once, balance bytes, respect their limits, and are deterministic."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import ArgumentError
from psframework.parameter_server.layout import Layout, ParameterSpec
from psframework.parameter_server.partition import (
    PARTITION_BYTES,
    Balanced,
    FixedShards,
    Hash,
    MaxSize,
    MinSize,
    Partitioner,
    covered,
    partitioner_from_spec,
)

PARTITIONERS = [
    Balanced(),
    FixedShards(3),
    MinSize(min_shard_bytes=1000, max_shards=4),
    MaxSize(max_shard_bytes=5000),
    MaxSize(max_shard_bytes=100, max_shards=2),
    Hash(),
]


def layout(*sizes: int, dtype: str = "float32") -> Layout:
    return Layout.of(ParameterSpec(f"p{i}", dtype, (size,)) for i, size in enumerate(sizes))


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    dtypes=st.lists(st.sampled_from(["float32", "float64", "float16"]), min_size=12, max_size=12),
    shards=st.integers(1, 7),
    partitioner=st.sampled_from(PARTITIONERS),
)
def test_partitions_cover_the_arena_once(sizes, dtypes, shards, partitioner):
    model = Layout.of(
        ParameterSpec(f"p{i}", dtype, (size,)) for i, (size, dtype) in enumerate(zip(sizes, dtypes))
    )
    partitions = partitioner.cut(model, shards)

    assert [p.index for p in partitions] == list(range(len(partitions)))
    assert partitions[0].offset == 0
    assert all(a.stop == b.offset for a, b in itertools.pairwise(partitions))
    assert partitions[-1].stop == model.nbytes
    assert all(0 <= p.shard < shards and 0 < p.nbytes <= PARTITION_BYTES for p in partitions)
    for field in model.fields:
        assert {p.dtype for p in covered(field, partitions)} == {field.spec.dtype}
    assert partitions == partitioner.cut(model, shards)
    assert partitioner_from_spec(partitioner.spec()) == partitioner


def loads(partitioner: Partitioner, model: Layout, shards: int) -> list[int]:
    load = [0] * shards
    for partition in partitioner.cut(model, shards):
        load[partition.shard] += partition.nbytes
    return load


def test_balanced_shares_bytes_evenly():
    assert max(loads(Balanced(), layout(1_000_000, 10, 3), 3)) <= 4_000_192 // 3 + 64


def test_by_size_partitioners_give_the_next_piece_to_the_least_loaded_shard():
    load = loads(FixedShards(4), layout(40_000, 40_000, 64), 2)
    assert abs(load[0] - load[1]) <= 256


def test_large_parameters_are_cut_to_one_mebibyte():
    partitions = Balanced().cut(layout(25_000_000), 1)
    assert len(partitions) == 96
    assert max(p.nbytes for p in partitions) <= PARTITION_BYTES


def test_tiny_neighbours_share_a_partition():
    assert len(Balanced().cut(layout(*[1] * 1000), 1)) == 1
    assert len(Balanced().cut(layout(*[1] * 1000), 2)) == 2


def pieces(partitioner: Partitioner, size: int, shards: int) -> int:
    return len(partitioner.cut(layout(size), shards))


def test_fixed_min_and_max_size_count_as_in_tensorflow():
    # 1000 float32 are 4000 bytes; with as many shards as pieces no two are merged again
    assert pieces(FixedShards(4), 1000, 4) == 4
    assert pieces(MinSize(min_shard_bytes=1500, max_shards=4), 1000, 4) == 2
    assert pieces(MinSize(min_shard_bytes=100, max_shards=3), 1000, 4) == 3
    assert pieces(MaxSize(max_shard_bytes=1500), 1000, 4) == 3
    assert pieces(MaxSize(max_shard_bytes=1500, max_shards=2), 1000, 4) == 2


def test_hash_keeps_each_parameter_whole():
    model = layout(*[500] * 20)
    partitions = Hash().cut(model, 3)
    assert {p.shard for p in partitions} == {0, 1, 2}
    for field in model.fields:
        assert len({p.shard for p in covered(field, partitions)}) == 1


@pytest.mark.parametrize(
    "spec", [{}, {"name": "nope"}, {"name": "fixed-shards", "shards": 0}, {"name": "hash", "x": 1}]
)
def test_bad_specs_are_refused(spec):
    with pytest.raises(ArgumentError):
        partitioner_from_spec(spec)


def test_no_shards_is_refused():
    with pytest.raises(ArgumentError, match="at least one"):
        Balanced().cut(layout(3), 0)


@pytest.mark.parametrize(
    "partitioner", [Balanced(), FixedShards(1 << 40), MinSize(64, 1 << 40), MaxSize(64), Hash()]
)
def test_a_length_from_the_network_fills_no_memory(partitioner: Partitioner) -> None:
    tracemalloc.start()
    with pytest.raises(ArgumentError, match=r"would have \d+ partitions; 131072 are possible"):
        partitioner.cut(layout(1 << 60), 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
