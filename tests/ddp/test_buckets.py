"""Which gradients share a bucket: kinds, sizes, order, and memory that does not move."""

import random

import pytest

from psframework.ddp.buckets import ALIGN, Piece, Span, lengths, plan

MIB = 1 << 20


def piece(nbytes: int, kind: str = "float32") -> Piece:
    itemsize = 8 if kind == "float64" else 4
    return Piece(nbytes // itemsize, itemsize, kind)


def members(spans: list[Span]) -> list[tuple[int, ...]]:
    return [span.members for span in spans]


def test_the_first_bucket_is_small_and_the_others_are_closed_by_the_cap() -> None:
    pieces = [piece(MIB) for _ in range(8)]
    assert members(plan(pieces, reversed(range(8)), 3 * MIB)) == [(7,), (6, 5, 4), (3, 2, 1), (0,)]


def test_a_cap_below_the_first_counts_for_the_first_too() -> None:
    assert members(plan([piece(64), piece(64)], [1, 0], 0)) == [(1,), (0,)]


def test_a_gradient_larger_than_the_cap_closes_the_bucket_that_it_comes_into() -> None:
    pieces = [piece(64), piece(10 * MIB), piece(64)]
    assert members(plan(pieces, [0, 1, 2], MIB)) == [(0, 1), (2,)]


def test_a_bucket_has_one_kind_and_comes_when_its_last_gradient_is_ready() -> None:
    pieces = [piece(64), piece(64, "float64"), piece(64, "float64"), piece(64)]
    spans = plan(pieces, [0, 1, 2, 3], 25 * MIB)
    assert members(spans) == [(1, 2), (0, 3)]
    assert [span.kind for span in spans] == ["float64", "float32"]


def test_no_parameters_no_buckets() -> None:
    assert plan([], [], MIB) == []
    assert lengths([]) == {}


@pytest.mark.parametrize("seed", range(20))
def test_every_order_fills_the_same_memory_without_overlap(seed: int) -> None:
    draw = random.Random(seed)
    pieces = [
        Piece(draw.choice([0, 1, 3, 16, 1000, 70_000]), size, f"kind {size}")
        for size in draw.choices([2, 4, 8], k=draw.randrange(1, 40))
    ]
    order = list(range(len(pieces)))
    draw.shuffle(order)
    spans = plan(pieces, order, draw.choice([0, 1000, 100_000, 25 * MIB]))
    assert sorted(number for span in spans for number in span.members) == list(range(len(pieces)))
    for kind, length in lengths(pieces).items():
        mine = [span for span in spans if span.kind == kind]
        borders = [0]
        for span in mine:
            assert span.start == borders[-1]
            taken = 0
            for number, start in zip(span.members, span.starts, strict=True):
                assert start == taken
                assert start * pieces[number].itemsize % ALIGN == 0
                taken = start + pieces[number].room
            assert span.stop == span.start + taken
            borders.append(span.stop)
        assert borders[-1] == length
    last = [max(order.index(number) for number in span.members) for span in spans]
    assert last == sorted(last)
