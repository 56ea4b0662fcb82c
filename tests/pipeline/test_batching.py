"""Requests go in few batches, in their order, and each gets its own rows back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import ArgumentError
from psframework.pipeline.batching import Batch, Batcher, Ticket


def taken(batcher: Batcher) -> list[Batch]:
    """All batches, until nobody waits."""
    batches = []
    while (batch := batcher.take()) is not None:
        batches.append(batch)
    assert len(batcher) == 0
    return batches


def test_32_requests_go_in_4_batches_and_each_gets_its_answer() -> None:
    batcher = Batcher(max_requests=8)
    inputs = {batcher.add({"x": np.full((1, 3), i), "k": 2}): i for i in range(32)}
    assert len(batcher) == 32
    batches = taken(batcher)
    assert len(batches) == 4
    answers = [pair for batch in batches for pair in batch.split((batch.inputs["x"] * 10, None))]
    assert [ticket for ticket, _ in answers] == list(inputs)
    for ticket, (array, nothing) in answers:
        np.testing.assert_array_equal(array, np.full((1, 3), inputs[ticket] * 10))
        assert nothing is None


# A request: (columns, rows). Columns differ for requests that can't be joined.
requests = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 7)), max_size=30)


@given(requests=requests, max_rows=st.integers(1, 12), max_requests=st.integers(1, 5))
def test_every_request_goes_once_within_the_limits(
    requests: list[tuple[int, int]], max_rows: int, max_requests: int
) -> None:
    batcher = Batcher(max_rows, max_requests)
    kinds: dict[Ticket, int] = {}
    for i, (columns, rows) in enumerate(requests):
        kinds[batcher.add(np.full((rows, columns), i))] = columns
    order = list(kinds)
    seen: list[Ticket] = []
    while (batch := batcher.take()) is not None:
        waiting = [ticket for ticket in order if ticket not in seen]
        assert batch.tickets[0] is waiting[0]  # the oldest never waits longer
        alike = [ticket for ticket in waiting if kinds[ticket] == kinds[waiting[0]]]
        assert list(batch.tickets) == alike[: len(batch.tickets)]
        rows = sum(ticket.rows for ticket in batch.tickets)
        assert len(batch.tickets) <= max_requests and (rows <= max_rows or len(batch.tickets) == 1)
        more = alike[len(batch.tickets) :]
        assert not more or len(batch.tickets) == max_requests or rows + more[0].rows > max_rows
        for ticket, answer in batch.split(batch.inputs):
            np.testing.assert_array_equal(answer, np.full((ticket.rows, kinds[ticket]), order.index(ticket)))
        seen += batch.tickets
    assert sorted(map(order.index, seen)) == list(range(len(order)))


@pytest.mark.parametrize(
    "other",
    [np.zeros((1, 3)), np.zeros((1, 2), np.float32), (np.zeros((1, 2)),), [np.zeros((1, 2)), 1]],
    ids=["shape", "dtype", "structure", "items"],
)
def test_what_can_not_be_joined_goes_apart(other: Any) -> None:
    batcher = Batcher()
    for tree in (np.zeros((1, 2)), other, np.ones((2, 2))):
        batcher.add(tree)
    assert [[ticket.rows for ticket in batch.tickets] for batch in taken(batcher)] == [[1, 2], [1]]


def test_who_no_longer_waits_is_left_out() -> None:
    batcher = Batcher()
    first, second, third = (batcher.add(np.full((1, 1), i)) for i in range(3))
    batcher.discard(second)
    batch = batcher.take()
    assert batch is not None and list(batch.tickets) == [first, third]
    batcher.discard(first)  # it has been taken
    assert batcher.take() is None


def test_a_result_of_other_rows_is_refused() -> None:
    batcher = Batcher()
    batcher.add(np.zeros((2, 1)))
    batcher.add(np.zeros((3, 1)))
    batch = batcher.take()
    assert batch is not None
    with pytest.raises(ArgumentError, match=r"gave 4 rows for 5: to be run in batches"):
        batch.split(np.zeros((4, 1)))


def test_a_request_without_rows_is_refused_and_does_not_wait() -> None:
    batcher = Batcher()
    with pytest.raises(ArgumentError, match="no rows"):
        batcher.add(3.0)
    assert len(batcher) == 0


@pytest.mark.parametrize("value", [0, True, 1.5])
@pytest.mark.parametrize("name", ["max_rows", "max_requests"])
def test_limits_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name}="):
        Batcher(**{name: value})
