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


GOOD = {"version": 1, "whole": {"2": 8}, "ring_from": 17}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "Expecting value"),
        ("[]", "no object"),
        ("{}", "version is None"),
        (json.dumps(GOOD | {"version": 2}), "version is 2, this program reads 1"),
        (json.dumps(GOOD | {"hole": 1}), "it has no 'hole'"),
        (json.dumps(GOOD | {"whole": 3}), "'whole' has to be"),
        (json.dumps(GOOD | {"whole": {"x": 1}}), "a number of ranks in 'whole' is 'x'"),
        (json.dumps(GOOD | {"whole": {"1": 1}}), "a number of ranks in 'whole' is 1"),
        (json.dumps(GOOD | {"whole": {"4": -1}}), "'whole' of 4 ranks is -1"),
        (json.dumps(GOOD | {"whole": {"4": 1.5}}), "'whole' of 4 ranks is 1.5"),
        (json.dumps(GOOD | {"ring_from": True}), "'ring_from' is True"),
        (json.dumps({"version": 1, "whole": {}}), "'ring_from' is None"),
    ],
)
def test_what_is_no_table_says_what_is_wrong_and_how_to_make_one(text: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="psf bench --tune") as caught:
        Table.from_json(text)
    assert wrong in str(caught.value)
    assert Table.from_json(json.dumps(GOOD)) == Table({2: 8}, 17)


def test_keys_of_the_file() -> None:
    assert json.loads(TABLE.to_json()) == {"version": 1, "whole": {"2": 1000, "8": 100}, "ring_from": 17}


def times(whole: float, direct: float, ring: float = 9.0) -> dict[Algorithm, float]:
    return {Algorithm.WHOLE: whole, Algorithm.DIRECT: direct, Algorithm.RING: ring}


def test_fit_stops_where_whole_arrays_begin_to_lose() -> None:
    fast, slow = times(1, 2), times(3, 2)
    table = fit({2: {65536: fast, 4096: fast, 1 << 20: slow, 1 << 21: slow}, 4: {4096: slow}})
    assert table.whole_up_to(2) == 65536
    assert table.whole_up_to(4) == 0
    assert table.whole_up_to(16) == 0  # more ranks gain less by it


def test_fit_keeps_the_default_for_ranks_that_were_not_measured() -> None:
    table = fit({4: {4096: times(1, 2), 1 << 20: times(1, 2)}})
    assert table.whole_up_to(2) == Table().whole_up_to(2)
    assert table.whole_up_to(4) == 1 << 20  # and not beyond: there more bytes travel than otherwise
    assert table.whole_up_to(16) == Table().whole_up_to(16)


def test_fit_goes_on_for_two_ranks_which_send_as_many_bytes() -> None:
    assert fit({2: {4096: times(1, 2)}}).whole_up_to(2) > 1 << 39


def test_one_figure_that_is_off_moves_no_border() -> None:
    sizes = {
        1: times(1, 2),
        2: times(1.2, 1),
        3: times(1, 2),
        4: times(2, 1),
        5: times(1, 1.2),
        6: times(2, 1),
    }
    assert fit({3: sizes}).whole_up_to(3) == 3


@pytest.mark.parametrize(
    ("rings", "expected"),
    [
        ({2: 0.1}, 17),  # two ranks are no ring
        ({4: 0.5}, 4),
        ({4: 0.97}, 17),  # noise
        ({3: 2.0, 4: 0.5, 8: 0.5}, 4),
        ({3: 0.5, 4: 2.0, 8: 0.5}, 8),
        ({4: 0.5, 8: 2.0}, 17),
    ],
)
def test_fit_takes_a_ring_from_where_it_is_always_faster(rings: dict[int, float], expected: int) -> None:
    measured = {ranks: {4: times(1, 2, 9), 1 << 20: times(3, 1, ring)} for ranks, ring in rings.items()}
    assert fit(measured).ring_from == expected


def test_whole_arrays_have_to_be_faster_than_what_is_taken_instead() -> None:
    sizes = {4: times(1, 2, 0.5), 8: times(1, 2, 0.5), 16: times(3, 2, 2)}
    assert fit({2: sizes}).whole_up_to(2) == 8  # where there is no ring
    sizes = {4: times(1, 2, 9), 8: times(2, 3, 1), 16: times(4, 3, 1)}
    table = fit({4: sizes})
    assert (table.ring_from, table.whole_up_to(4)) == (4, 4)


def test_a_ring_has_to_be_faster_for_all_that_is_not_sent_whole() -> None:
    sizes = {4: times(1, 2, 9), 1 << 20: times(3, 1, 1.5), 1 << 24: times(3, 1, 0.7)}
    assert fit({4: sizes}).ring_from == 17
    assert fit({4: {4: times(1, 9, 2)}}).ring_from == 17  # nothing else was measured
