"""How descriptors spread: who writes to whom, what is passed on, and that all end with the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.collective.agreement import decode, distances, distinct, encode
from psframework.collective.descriptor import Descriptor, Operation
from psframework.errors import WireError


def kind(number: int) -> Descriptor:
    return Descriptor(7, Operation.BROADCAST, "float32", (number,), None, 0)


def spread(kinds: list[int]) -> list[dict[int, Descriptor]]:
    """What each rank knows at the end."""
    size = len(kinds)
    known = [{rank: kind(each)} for rank, each in enumerate(kinds)]
    for distance in distances(size):
        headers = [encode(each) for each in known]
        known = [
            distinct({**decode(headers[(rank - distance) % size]), **known[rank]}) for rank in range(size)
        ]
    return known


@given(st.lists(st.integers(0, 9), min_size=1, max_size=70))
def test_all_ranks_end_with_one_of_each_kind(kinds: list[int]) -> None:
    lowest = {each: kinds.index(each) for each in sorted(set(kinds), key=kinds.index)}
    expected = {rank: kind(each) for each, rank in list(lowest.items())[:6]}
    assert all(known == expected for known in spread(kinds))


def test_rounds_are_few() -> None:
    assert [len(distances(size)) for size in (1, 2, 3, 16, 17, 64, 65)] == [0, 1, 2, 4, 5, 6, 7]


@given(st.binary(max_size=120))
def test_any_bytes_are_descriptors_or_an_error(data: bytes) -> None:
    try:
        decode(data)
    except WireError:
        pass


def test_what_is_cut_short_is_an_error() -> None:
    whole = encode({3: kind(1), 5: kind(2)})
    assert decode(whole) == {3: kind(1), 5: kind(2)}
    for length in (3, len(whole) - 1, len(whole) - 20):
        with pytest.raises(WireError):
            decode(whole[:length])
