"""Schedules against literal tables: what each rank does, in which order, and how much it keeps meanwhile."""

from itertools import pairwise, product

import pytest

from psframework.errors import ArgumentError
from psframework.pipeline.schedule import (
    SCHEDULES,
    Action,
    Kind,
    actions,
    forward_only,
    own,
    peak_activations,
)

GPIPE = """
F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
"""
ONE_F_ONE_B = """
F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7
F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7
F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7
"""
EAGER = """
F0 F1 F2 F3 F4 F5 F6 B0 F7 B1 B2 B3 B4 B5 B6 B7
F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 F7 B3 B4 B5 B6 B7
F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7
"""
ZERO_BUBBLE = """
F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
"""
# Figure 4 of arXiv:2104.04473 (below): four ranks, two stages each, eight micro-batches.
INTERLEAVED = """
F0.0 F0.1 F0.2 F0.3 F4.0 F4.1 F4.2 F4.3 F0.4 F0.5 F0.6 B4.0 F0.7 B4.1 F4.4 B4.2 F4.5 B4.3 F4.6 B0.0 F4.7 B0.1 B0.2 B0.3 B4.4 B4.5 B4.6 B4.7 B0.4 B0.5 B0.6 B0.7
F1.0 F1.1 F1.2 F1.3 F5.0 F5.1 F5.2 F5.3 F1.4 B5.0 F1.5 B5.1 F1.6 B5.2 F1.7 B5.3 F5.4 B1.0 F5.5 B1.1 F5.6 B1.2 F5.7 B1.3 B5.4 B5.5 B5.6 B5.7 B1.4 B1.5 B1.6 B1.7
F2.0 F2.1 F2.2 F2.3 F6.0 F6.1 F6.2 B6.0 F6.3 B6.1 F2.4 B6.2 F2.5 B6.3 F2.6 B2.0 F2.7 B2.1 F6.4 B2.2 F6.5 B2.3 F6.6 B6.4 F6.7 B6.5 B6.6 B6.7 B2.4 B2.5 B2.6 B2.7
F3.0 F3.1 F3.2 F3.3 F7.0 B7.0 F7.1 B7.1 F7.2 B7.2 F7.3 B7.3 F3.4 B3.0 F3.5 B3.1 F3.6 B3.2 F3.7 B3.3 F7.4 B7.4 F7.5 B7.5 F7.6 B7.6 F7.7 B7.7 B3.4 B3.5 B3.6 B3.7
"""  # noqa: E501
# Five micro-batches are no multiple of two ranks: groups of three and of two.
UNEVEN = """
F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 F0.3 B2.1 F0.4 B2.2 F2.3 B0.0 F2.4 B0.1 B0.2 B2.3 B2.4 B0.3 B0.4
F1.0 F1.1 F1.2 F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F1.3 B1.0 F1.4 B1.1 F3.3 B1.2 F3.4 B3.3 B3.4 B1.3 B1.4
"""


def short(action: Action) -> str:
    return f"{action.kind}{action.microbatch}"


@pytest.mark.parametrize(
    ("schedule", "table"),
    [("gpipe", GPIPE), ("1f1b", ONE_F_ONE_B), ("eager-1f1b", EAGER), ("zb-h1", ZERO_BUBBLE)],
)
def test_four_ranks_eight_microbatches(schedule: str, table: str) -> None:
    for rank, row in enumerate(table.split("\n")[1:-1]):
        plan = actions(schedule, rank, 4, 8)
        assert [short(action) for action in plan] == row.split()
        assert {action.stage for action in plan} == {rank}


@pytest.mark.parametrize(
    ("table", "ranks", "microbatches"), [(INTERLEAVED, 4, 8), (UNEVEN, 2, 5)], ids=["even", "uneven"]
)
def test_interleaved(table: str, ranks: int, microbatches: int) -> None:
    for rank, row in enumerate(table.split("\n")[1:-1]):
        assert [str(a) for a in actions("interleaved", rank, ranks, microbatches, 2)] == row.split()


@pytest.mark.parametrize(
    ("schedule", "rows"),
    [
        ("gpipe", ["F0 F1 B0 B1"] * 3),
        ("1f1b", ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        ("eager-1f1b", ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        ("zb-h1", ["F0 F1 B0 W0 B1 W1", "F0 F1 B0 B1 W0 W1", "F0 B0 F1 B1 W0 W1"]),
        ("interleaved", ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
    ],
)
def test_fewer_microbatches_than_ranks(schedule: str, rows: list[str]) -> None:
    assert [" ".join(map(short, actions(schedule, rank, 3, 2))) for rank in range(3)] == rows


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", range(1, 7))
def test_each_action_once_and_in_order(schedule: str, ranks: int) -> None:
    """Each stage goes forward, back and to its weights once, in that order, and by ascending micro-batch."""
    kinds = "FBW" if schedule == "zb-h1" else "FB"
    for m, v, rank in product(range(1, 21), range(1, 5), range(ranks)):
        if v > 1 and schedule != "interleaved":
            continue
        plan = actions(schedule, rank, ranks, m, v)
        places = {action: place for place, action in enumerate(plan)}
        stages = range(rank, ranks * v, ranks)
        assert sorted(plan) == sorted(Action(Kind(k), s, j) for k in kinds for s in stages for j in range(m))
        for stage in stages:
            for kind in kinds:
                turn = [places[Action(Kind(kind), stage, j)] for j in range(m)]
                assert turn == sorted(turn)
            for before, after in pairwise(kinds):
                for j in range(m):
                    assert places[Action(Kind(before), stage, j)] < places[Action(Kind(after), stage, j)]


@pytest.mark.parametrize("m", [1, 3, 4, 8, 32])
def test_peak_activations(m: int) -> None:
    """32 micro-batches on 4 ranks: GPipe keeps all, 1F1B only those that are under way.

    ZB-H1 keeps on every rank as many as 1F1B does on its first.
    """
    peaks = {
        schedule: [peak_activations(actions(schedule, rank, 4, m)) for rank in range(4)]
        for schedule in SCHEDULES
    }
    assert peaks["gpipe"] == [m] * 4
    assert peaks["1f1b"] == [min(m, most) for most in (4, 3, 2, 1)]
    assert peaks["eager-1f1b"] == [min(m, most) for most in (7, 5, 3, 1)]
    assert peaks["zb-h1"] == [min(m, 4)] * 4
    assert max(peaks["zb-h1"]) == max(peaks["1f1b"])


@pytest.mark.parametrize(
    ("m", "v", "peaks"),
    [
        (32, 1, [7, 5, 3, 1]),
        (32, 2, [11, 9, 7, 5]),
        (32, 3, [15, 13, 11, 9]),
        (4, 2, [8, 8, 7, 5]),  # no more than there are
        (1, 4, [4, 4, 4, 4]),
        (9, 2, [12, 10, 8, 6]),  # a first group of five
    ],
)
def test_peak_activations_interleaved(m: int, v: int, peaks: list[int]) -> None:
    """Megatron's warm-up, 2(p-r-1) + (v-1)p forwards on rank r, and the one forward that follows it."""
    assert [peak_activations(actions("interleaved", rank, 4, m, v)) for rank in range(4)] == peaks


def test_forward_only() -> None:
    assert " ".join(map(str, forward_only(1, 2, 3))) == "F1.0 F1.1 F1.2"
    assert " ".join(map(str, forward_only(0, 2, 4, 2))) == "F0.0 F0.1 F2.0 F2.1 F0.2 F0.3 F2.2 F2.3"
    assert " ".join(map(str, forward_only(2, 3, 1, 2))) == "F2.0 F5.0"


def test_replicas_share_a_plan() -> None:
    plan = actions("1f1b", 0, 3, 5)
    shares = [own(plan, replica, 2) for replica in range(2)]
    assert [" ".join(map(short, share)) for share in shares] == ["F0 F2 B0 F4 B2 B4", "F1 F3 B1 B3"]
    assert own(plan, 0, 1) == plan
    assert own(actions("gpipe", 0, 1, 2), 2, 3) == ()  # more replicas than micro-batches
    with pytest.raises(ArgumentError, match="replica 2 of 2"):
        own(plan, 2, 2)


def test_unknown_schedule_lists_the_names() -> None:
    with pytest.raises(ArgumentError, match=r"'2f2b'.*gpipe, 1f1b, eager-1f1b, zb-h1, interleaved"):
        actions("2f2b", 0, 1, 1)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-1f1b", "zb-h1"])
def test_virtual_stages_only_when_interleaved(schedule: str) -> None:
    with pytest.raises(ArgumentError, match=f"2 virtual stages .*'{schedule}'.*'interleaved'"):
        actions(schedule, 0, 2, 4, 2)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 0, 1, 1), "ranks is 0"),
        ((0, 1, 0, 1), "microbatches is 0"),
        ((0, 1, 1, 0), "virtual_stages is 0"),
        ((2, 2, 1, 1), "rank 2 of 2"),
        ((-1, 2, 1, 1), "rank -1 of 2"),
    ],
    ids=["ranks", "microbatches", "virtual_stages", "rank too large", "rank negative"],
)
def test_numbers_out_of_range(numbers: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        actions("interleaved", *numbers)
    with pytest.raises(ArgumentError, match=message):
        forward_only(*numbers)
