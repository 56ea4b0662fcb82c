"""Ranges of a segment: none is given twice, and all come back."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from psframework.rpc.session.arena import ALIGN, Arena, layout


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60))
def test_an_arena_never_gives_a_byte_twice(steps: list[tuple[bool, int]]) -> None:
    arena = Arena(SimpleNamespace(nbytes=1000), 1)
    taken = []
    for take, number in steps:
        if take and (region := arena.take(number)):
            assert all(region.end <= other.begin or region.begin >= other.end for other in taken)
            taken.append(region)
        elif not take and taken:
            taken.pop(number % len(taken)).free()
    for region in taken:
        region.free()
    assert arena.is_idle and arena.take(1000) is not None


@given(st.lists(st.integers(0, 300), max_size=20))
def test_parts_lie_one_after_the_other_where_any_dtype_may_begin(sizes: list[int]) -> None:
    offsets, total = layout(sizes)
    ends = [offset + size for offset, size in zip(offsets, sizes)]
    assert all(offset % ALIGN == 0 for offset in offsets) and total >= max(ends, default=1)
    assert all(end <= begin for end, begin in zip(ends, offsets[1:]))
