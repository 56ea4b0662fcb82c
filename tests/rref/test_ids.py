"""Numbers remember only what lies above a gap, and lives that are over only where their runs end."""

from hypothesis import given
from hypothesis import strategies as st

from psframework.rref.ids import ForkId, HoldId, Incarnations, Numbers, RRefId


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


@given(st.lists(st.integers(1, 8)))
def test_lives_that_are_over(order: list[int]) -> None:
    over, expected = Incarnations(), set[int]()
    for incarnation in order:
        assert over.add(incarnation) == (incarnation not in expected)
        expected.add(incarnation)
    assert {n for n in range(10) if n in over} == expected
    assert over.runs == sum(n - 1 not in expected for n in expected)


def test_lives_that_are_over_lie_in_runs() -> None:
    """A hundred thousand came and went, and ten that live are among them."""
    over = Incarnations()
    living = set(range(5_000, 100_000, 10_000))
    for incarnation in range(1, 100_001):
        if incarnation not in living:
            over.add(incarnation)
    assert over.runs == len(living) + 1
    assert not any(incarnation in over for incarnation in living)
