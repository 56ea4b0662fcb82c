"""Ids sort as their bytes do; numbers remember only what lies above a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import WireError
from psframework.rref.ids import ForkId, HoldId, Numbers, RRefId

U64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("kind", [RRefId, ForkId])
@given(a=st.tuples(U64, U64), b=st.tuples(U64, U64))
def test_sixteen_bytes_that_sort(
    kind: type[RRefId] | type[ForkId], a: tuple[int, int], b: tuple[int, int]
) -> None:
    one, two = kind(*a), kind(*b)
    assert len(one.to_bytes()) == 16
    assert kind.from_bytes(one.to_bytes()) == one
    assert (one < two) == (one.to_bytes() < two.to_bytes())


@pytest.mark.parametrize("kind", [RRefId, ForkId])
def test_other_bytes_are_refused(kind: type[RRefId] | type[ForkId]) -> None:
    with pytest.raises(WireError, match="16 bytes"):
        kind.from_bytes(b"short")


def test_ids_read_well() -> None:
    assert [str(RRefId(3, 7)), str(ForkId(3, 7)), str(HoldId(3, 7))] == ["3.7", "3/7", "3>7"]


@given(st.permutations(range(1, 20)), st.lists(st.integers(1, 19)))
def test_numbers_in_any_order(order: list[int], again: list[int]) -> None:
    numbers = Numbers()
    for number in order:
        assert number not in numbers
        assert numbers.add(number)
        assert not numbers.add(number)
        assert all(beyond > numbers.through + 1 for beyond in numbers.beyond)
    assert numbers.through == 19
    assert not numbers.beyond
    assert not any(numbers.add(number) for number in again)
