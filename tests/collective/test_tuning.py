"""Which algorithm is taken; what the table looks like on disk; what measurements make of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.collective.descriptor import Operation
from psframework.collective.tuning import Algorithm, Table, fit
from psframework.errors import ArgumentError, ConfigurationError

TABLE = Table({2: 1000, 8: 100}, ring_from=17)


@pytest.mark.parametrize(
    ("operation", "nbytes", "ranks", "expected"),
    [
        (Operation.ALL_REDUCE, 1000, 2, Algorithm.WHOLE),
        (Operation.ALL_REDUCE, 1001, 2, Algorithm.DIRECT),
        (Operation.ALL_REDUCE, 101, 3, Algorithm.DIRECT),  # between 2 and 8: as with 8
        (Operation.ALL_REDUCE, 100, 8, Algorithm.WHOLE),
        (Operation.ALL_REDUCE, 1, 9, Algorithm.DIRECT),
        (Operation.ALL_REDUCE, 1, 17, Algorithm.RING),
        (Operation.REDUCE_SCATTER, 1, 2, Algorithm.DIRECT),
        (Operation.ALL_GATHER, 1, 20, Algorithm.RING),
        (Operation.BROADCAST, 1 << 30, 20, Algorithm.DIRECT),
        (Operation.BARRIER, 0, 20, Algorithm.DIRECT),
    ],
)
def test_choice(operation: Operation, nbytes: int, ranks: int, expected: Algorithm) -> None:
    assert TABLE.choose(operation, nbytes, ranks) is expected


def test_a_deterministic_group_has_no_ring() -> None:
    table = TABLE.only(None, deterministic=True)
    assert table.choose(Operation.ALL_REDUCE, 1 << 30, 500) is Algorithm.DIRECT
    assert table.large(500) is Algorithm.DIRECT
    with pytest.raises(ArgumentError, match="rank order"):
        TABLE.only("ring", deterministic=True)


def test_a_group_may_ask_for_one() -> None:
    ring = TABLE.only("ring", deterministic=False)
    assert ring.choose(Operation.ALL_REDUCE, 4, 2) is Algorithm.RING
    direct = TABLE.only("direct", deterministic=False)
    assert direct.choose(Operation.ALL_REDUCE, 1 << 30, 100) is Algorithm.DIRECT
    assert TABLE.only(None, deterministic=False) is TABLE
    assert TABLE.only("shm", deterministic=False) is TABLE


@given(st.dictionaries(st.integers(2, 100), st.integers(0, 1 << 30)), st.integers(2, 100))
def test_the_file_gives_the_same_table_and_digest(whole: dict[int, int], ring_from: int) -> None:
    table = Table(whole, ring_from)
    read = Table.from_json(table.to_json())
    assert read == table and read.digest == table.digest
    assert Table(whole, ring_from + 1).digest != table.digest


def test_the_digest_does_not_depend_on_the_order() -> None:
    assert Table({2: 1, 4: 2}).digest == Table({4: 2, 2: 1}).digest


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "whole": {}, "ring_from": 3}', '{"version": 1, "whole": {"x": 1}}'],
)
def test_what_is_no_table_says_how_to_make_one(text: str) -> None:
    with pytest.raises(ConfigurationError, match="psf bench --tune"):
        Table.from_json(text)


def test_keys_of_the_file() -> None:
    assert json.loads(TABLE.to_json()) == {"version": 1, "whole": {"2": 1000, "8": 100}, "ring_from": 17}


def test_fit_stops_where_whole_arrays_lose_first() -> None:
    fast, slow = {Algorithm.WHOLE: 1.0, Algorithm.DIRECT: 2.0}, {Algorithm.WHOLE: 3.0, Algorithm.DIRECT: 2.0}
    table = fit({2: {4096: fast, 65536: fast, 1 << 20: slow, 1 << 21: fast}, 4: {4096: slow}})
    assert table.whole_up_to(2) == 65536
    assert table.whole_up_to(4) == 0
    assert table.whole_up_to(16) == Table().whole_up_to(16)
