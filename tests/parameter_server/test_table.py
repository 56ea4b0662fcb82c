"""A shard's arithmetic: bitwise that of one process, whatever the cut, the order and the repetitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework import optim
from psframework.errors import ArgumentError
from psframework.optim.rule import UpdateRule
from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.layout import Layout, ParameterSpec
from psframework.parameter_server.partition import Balanced, FixedShards, Partition
from psframework.parameter_server.sources import Arena, Parts, Source
from psframework.parameter_server.table import Gradient, Pull, Table

RULES = [
    optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01).rule,
    optim.Adam(lr=0.01).rule,
    optim.AdamW(lr=0.01).rule,
    optim.Adagrad(lr=0.1).rule,
    optim.RMSprop(lr=0.01).rule,
    optim.FTRL(lr=0.1, l1=0.01, beta=1.0).rule,
]
MODEL = Layout.of(
    [
        ParameterSpec("w", "float32", (700, 1000)),  # three partitions
        ParameterSpec("b", "float32", (7,)),
        ParameterSpec("d", "float64", (33, 2)),
    ]
)


def memory(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    arena = np.zeros(MODEL.nbytes, np.uint8)
    for field in MODEL.fields:
        dtype = np.dtype(field.spec.dtype)
        view = arena[field.offset : field.offset + field.spec.nbytes].view(dtype)
        view[...] = rng.standard_normal(field.spec.size)
    return arena


def views(arena: np.ndarray) -> list[np.ndarray]:
    return [arena[f.offset : f.offset + f.span].view(f.spec.dtype) for f in MODEL.fields]


def shard(partitions: tuple[Partition, ...], index: int) -> tuple[Partition, ...]:
    return tuple(p for p in partitions if p.shard == index)


def tables(rule: UpdateRule, start: np.ndarray, shards: int = 2) -> list[Table]:
    partitions = FixedShards(3).cut(MODEL, shards) if shards == 2 else Balanced().cut(MODEL, shards)
    made = [Table(shard(partitions, index), rule) for index in range(shards)]
    for table in made:
        table.initialize(Arena.of_model(table.partitions, start.data), table.everything)
    return made


def gradient(table: Table, writer: int, sequence: int, arena: np.ndarray, parts: bool = False) -> Gradient:
    source: Source = Arena.of_model(table.partitions, arena.data)
    if parts:
        source = Parts(
            {i: arena[p.offset : p.stop].view(p.dtype).copy() for i, p in enumerate(table.partitions)}
        )
    return Gradient(writer, sequence, source, table.everything)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rounds_equal_one_process_that_takes_the_mean(rule):
    start, alone = memory(0), memory(0)
    state = [rule.init_state(values) for values in views(alone)]
    made = tables(rule, start)
    result = np.zeros_like(start)
    for step in range(4):
        grads = [memory(100 + 2 * step), memory(101 + 2 * step)]
        for table in made:
            for slot in (1, 0):  # the order of arrival does not matter
                gradient_ = gradient(table, slot + 10, step + 1, grads[slot], parts=slot == 1)
                assert table.stage(slot, gradient_, kept=bool(slot))
            table.apply_round((0, 1), [Pull(sink=Arena.of_model(table.partitions, result.data))])
        for values, a, b, slots in zip(views(alone), views(grads[0]), views(grads[1]), state):
            rule.update(values, (a + b) / 2, slots, step + 1)
        assert np.array_equal(result, alone)
    assert {version for table in made for version in table.versions} == {5}


@pytest.mark.parametrize("optimizer", [optim.RowWiseAdagrad(), optim.LAMB()], ids=lambda o: o.rule.name)
def test_rules_that_need_more_than_an_element_are_refused(optimizer):
    whole = {"rowwise_adagrad": "row", "lamb": "parameter"}[optimizer.rule.name]
    with pytest.raises(ArgumentError, match=f"{optimizer.rule.name} needs a whole {whole} at once"):
        Table((Partition(0, "float32", 0, 16, 0),), optimizer.rule)


@given(order=st.permutations([(w, s) for w in (1, 2) for s in (1, 2, 3)] * 2))
def test_each_push_counts_once_in_any_order(order):
    table = Table((Partition(0, "float32", 0, 16, 0),), optim.SGD(lr=1.0).rule)
    for writer, sequence in order:
        ones = np.full(16, writer, np.float32)
        table.apply_push(Gradient(writer, sequence, Parts({0: ones}), frozenset({0})))
    assert np.all(table.values(0) == -3 * (1 + 2))
    assert table.updates == 6


def test_a_push_that_stopped_half_way_is_finished_by_its_repetition():
    start = memory(0)
    table = tables(optim.SGD(lr=1.0).rule, start, shards=1)[0]
    whole = gradient(table, 7, 1, memory(1), parts=True)
    table.apply_push(Gradient(7, 1, whole.source, frozenset({0, 2})))
    table.apply_push(whole)
    table.finish_push(7, 1)
    result = np.zeros_like(start)
    table.read(Pull(sink=Arena.of_model(table.partitions, result.data)))
    for got, before, moved in zip(views(result), views(start), views(memory(1))):
        assert np.array_equal(got, before - moved)


def test_a_pull_gets_only_what_changed():
    table = tables(optim.SGD(lr=1.0).rule, memory(0), shards=1)[0]
    pull = Pull(known=list(table.versions))
    table.read(pull)
    assert pull.changed == []
    ones = np.ones(table.partitions[1].size, np.float32)
    table.apply_push(Gradient(1, 1, Parts({1: ones}), frozenset({1})))
    seen = [1] * len(table.partitions)
    sink = np.zeros(MODEL.nbytes, np.uint8)
    pull = Pull(known=seen, sink=Arena.of_model(table.partitions, sink.data))
    table.read(pull)
    assert pull.changed == [1]
    written = np.flatnonzero(sink)
    assert table.partitions[1].offset <= written.min() <= written.max() < table.partitions[1].stop


def test_a_missing_gradient_counts_as_zero_in_the_mean_and_untouched_partitions_stay():
    table = tables(optim.SGD(lr=1.0).rule, np.zeros(MODEL.nbytes, np.uint8), shards=1)[0]
    four = np.full(table.partitions[0].size, 4.0, np.float32)
    table.stage(0, Gradient(1, 1, Parts({0: four}), frozenset({0})), kept=True)
    table.stage(1, Gradient(2, 1, Parts({}), frozenset()), kept=True)
    table.apply_round((0, 1))
    assert np.all(table.values(0) == -2)
    assert table.versions[:2] == [2, 1]


def test_late_gradients_are_dropped_and_stay_dropped():
    table = tables(optim.SGD(lr=1.0).rule, memory(0), shards=1)[0]
    for slot in (0, 1):
        table.stage(slot, gradient(table, slot + 1, 1, memory(slot)), kept=False)
    table.apply_round((0,))
    assert table.dedupe[0].seen(2, 1) is Outcome.DROPPED
    assert not table.stage(1, gradient(table, 2, 1, memory(9)), kept=False)
    assert table.stage(1, gradient(table, 2, 2, memory(9)), kept=False)
    assert not table.stage(1, gradient(table, 2, 1, memory(9)), kept=False)


def test_staged_copies_do_not_follow_their_sender_and_their_memory_is_reused():
    table = tables(optim.SGD(lr=1.0).rule, np.zeros(MODEL.nbytes, np.uint8), shards=1)[0]
    for sequence in range(1, 4):
        sent = memory(1)
        table.stage(0, gradient(table, 1, sequence, sent), kept=False)
        sent[...] = 0
        table.apply_round((0,))
        assert table.staged_bytes == table.parameter_bytes
    assert table.values(0).any()


def test_fenced_writers_leave_nothing_behind():
    table = tables(optim.SGD(lr=1.0).rule, memory(0), shards=1)[0]
    table.stage(0, gradient(table, 1, 1, memory(1)), kept=False)
    table.stage(1, gradient(table, 2, 1, memory(2)), kept=False)
    table.keep_writers({2})
    before = table.values(0).copy()
    table.apply_round((1,))
    assert np.array_equal(table.values(0), before - memory(2)[: table.partitions[0].nbytes].view(np.float32))


def test_half_precision_gradients_are_widened():
    table = Table((Partition(0, "float32", 0, 16, 0),), optim.SGD(lr=1.0).rule)
    half = np.full(16, 0.5, np.float16)
    table.stage(0, Gradient(1, 1, Parts({0: half}), frozenset({0})), kept=False)
    table.apply_round((0,))
    table.apply_push(Gradient(1, 2, Parts({0: half}), frozenset({0})))
    assert np.all(table.values(0) == -1)


def test_sizes_are_reported():
    table = tables(optim.Adam(lr=0.1).rule, memory(0), shards=1)[0]
    assert table.parameter_bytes == MODEL.nbytes
    assert table.state_bytes == 2 * MODEL.nbytes


def test_memory_for_staged_gradients_is_counted_and_given_back():
    table = tables(RULES[0], memory(0), shards=1)[0]
    values = table.parameter_bytes
    for slot in range(4):
        table.stage(slot, gradient(table, 10 + slot, 1, memory(1)), kept=False)
    table.stage(4, gradient(table, 14, 1, memory(1), parts=True), kept=True)
    assert table.staged_bytes == 5 * values
    assert table.needs_room(4, copied=False) == 0
    assert table.needs_room(5, copied=False) == values
    table.apply_round((0, 1, 2, 3, 4))
    assert table.staged_bytes == 4 * values  # kept for the next step
    table.keep_writers([10])
    assert table.staged_bytes == values
