"""Plans played through: none deadlocks, each is as fast as its paper says, and a bad plan is named.

A makespan is proof that there was no deadlock: it is asserted of every schedule for up to six ranks, twenty
micro-batches and four virtual stages.
"""

from itertools import product

import pytest

from psframework.errors import ArgumentError
from psframework.pipeline.schedule import SCHEDULES, Action, Kind, actions, forward_only, own
from psframework.pipeline.timetable import TimedAction, Timetable, ideal_bubble, needs, simulate

TIMES = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0}
SPLIT = {Kind.FORWARD: 1.0, Kind.BACKWARD: 1.0, Kind.WEIGHT: 1.0}


def plans(schedule: str, ranks: int, microbatches: int, virtual_stages: int = 1) -> list[tuple[Action, ...]]:
    return [actions(schedule, rank, ranks, microbatches, virtual_stages) for rank in range(ranks)]


def parsed(row: str) -> list[Action]:
    """ "F0.1 B0.1" as actions."""
    places = [(word[0], *word[1:].split(".")) for word in row.split()]
    return [Action(Kind(kind), int(stage), int(microbatch)) for kind, stage, microbatch in places]


def starts(table: Timetable) -> list[dict[str, float]]:
    return [{str(span.action): span.began for span in spans} for spans in table.spans]


def test_two_ranks_two_microbatches() -> None:
    table = simulate(plans("1f1b", 2, 2), TIMES)
    assert starts(table) == [
        {"F0.0": 0, "F0.1": 1, "B0.0": 4, "B0.1": 7},
        {"F1.0": 1, "B1.0": 2, "F1.1": 4, "B1.1": 5},
    ]
    assert table.spans[0][-1] == TimedAction(Action(Kind.BACKWARD, 0, 1), 7, 9)
    assert table.makespan == 9
    assert table.bubble == pytest.approx(1 / 3)


def test_data_take_time_to_another_rank_alone() -> None:
    assert starts(simulate(plans("1f1b", 2, 1), TIMES, transfer=0.5)) == [
        {"F0.0": 0, "B0.0": 5},
        {"F1.0": 1.5, "B1.0": 2.5},
    ]
    assert simulate(plans("interleaved", 1, 1, 2), TIMES, transfer=0.5).makespan == 6


def test_times_of_each_action() -> None:
    table = simulate(plans("gpipe", 2, 1), lambda action: 10 * action.stage + len(action.kind))
    assert starts(table) == [{"F0.0": 0, "B0.0": 23}, {"F1.0": 1, "B1.0": 12}]


def test_what_an_action_needs() -> None:
    def words(row: str) -> str:
        return " ".join(map(str, needs(parsed(row)[0], last=2)))

    assert words("F0.3") == ""
    assert words("F2.3") == "F1.3"
    assert words("B1.3") == "F1.3 B2.3"
    assert words("B2.3") == "F2.3"
    assert words("W1.3") == "B1.3"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-1f1b"])
@pytest.mark.parametrize("ranks", range(1, 7))
def test_makespan_and_bubble(schedule: str, ranks: int) -> None:
    for m in range(1, 21):
        table = simulate(plans(schedule, ranks, m), TIMES)
        assert table.makespan == (m + ranks - 1) * 3
        assert table.bubble == pytest.approx(ideal_bubble(ranks, m))


@pytest.mark.parametrize("transfer", [0.5, 1.5])
@pytest.mark.parametrize("ranks", range(2, 7))
def test_the_way_of_data_counts_again_and_again_under_1f1b_only(ranks: int, transfer: float) -> None:
    """Eager 1F1B waits for them on the way of the first micro-batch and the last, as GPipe does."""
    for m in range(1, 21):
        gpipe, plain, eager = (
            simulate(plans(schedule, ranks, m), TIMES, transfer).makespan
            for schedule in ("gpipe", "1f1b", "eager-1f1b")
        )
        assert eager == gpipe == (m + ranks - 1) * 3 + 2 * (ranks - 1) * transfer
        again = (m - 1) - -(-(m - 1) // ranks)  # all but one of each `ranks` that follow the first
        assert plain == eager + again * 2 * transfer


@pytest.mark.parametrize("v", range(1, 5))
@pytest.mark.parametrize("ranks", range(1, 7))
def test_makespan_and_bubble_interleaved(ranks: int, v: int) -> None:
    """Ideal for any number of micro-batches; fewer than ranks are bound by the way of the first of them."""
    for m in range(1, 21):
        table = simulate(plans("interleaved", ranks, m, v), TIMES)
        assert table.makespan == 3 * max(m * v + ranks - 1, ranks * v + m - 1)
        if m >= ranks:
            assert table.bubble == pytest.approx(ideal_bubble(ranks, m, v))


@pytest.mark.parametrize("times", [(1, 1, 1), (3, 2, 1), (4, 5, 3)], ids=lambda t: "-".join(map(str, t)))
@pytest.mark.parametrize("ranks", range(1, 7))
def test_zero_bubble(ranks: int, times: tuple[int, int, int]) -> None:
    """The bubble of arXiv:2401.10241, table 2: (p-1)(F+B-W)."""
    f, b, w = times
    for m in range(ranks, 21):
        table = simulate(plans("zb-h1", ranks, m), dict(zip(Kind, times)))
        assert table.makespan == m * (f + b + w) + (ranks - 1) * (f + b - w)


@pytest.mark.parametrize("ranks", range(2, 7))
def test_zero_bubble_with_few_microbatches(ranks: int) -> None:
    """The first gradient comes to rank 0 after 2p-1 actions; then m-1 more, and m of the weights."""
    for m in range(1, ranks):
        assert simulate(plans("zb-h1", ranks, m), SPLIT).makespan == 2 * ranks - 1 + 2 * m


@pytest.mark.parametrize("v", range(1, 5))
@pytest.mark.parametrize("ranks", range(1, 7))
def test_forward_only(ranks: int, v: int) -> None:
    for m in (1, 2, 5, 8, 13, 20):
        table = simulate([forward_only(rank, ranks, m, v) for rank in range(ranks)], TIMES)
        assert table.makespan == max(m * v + ranks - 1, ranks * v + m - 1)


@pytest.mark.parametrize(("schedule", "v"), [(s, 1) for s in SCHEDULES] + [("interleaved", 2)])
def test_replicated_ranks_are_free_of_deadlock(schedule: str, v: int) -> None:
    """Each rank has its own number of replicas; each takes its micro-batches of the rank's plan."""
    for ranks, m in product(range(1, 5), (1, 2, 5, 8)):
        whole = plans(schedule, ranks, m, v)
        for counts in product(range(1, 4), repeat=ranks):
            shares = [own(whole[r], i, count) for r, count in enumerate(counts) for i in range(count)]
            table = simulate(shares, SPLIT)
            done = sorted(span.action for spans in table.spans for span in spans)
            assert done == sorted(action for plan in whole for action in plan)


def test_replicas_make_a_slow_rank_keep_up() -> None:
    whole = plans("gpipe", 2, 8)
    slow = {0: 2.0, 1: 1.0}

    def times(action: Action) -> float:
        return slow[action.stage] * TIMES[action.kind]

    twice = [own(whole[0], 0, 2), own(whole[0], 1, 2), whole[1]]
    assert simulate(whole, times).makespan == 8 * 6 + 3
    assert simulate(twice, times).makespan == 2 + 8 * 3 + 4


def test_ideal_bubble() -> None:
    assert ideal_bubble(4, 8) == pytest.approx(3 / 11)
    assert ideal_bubble(4, 8, 2) == pytest.approx(3 / 19)
    assert ideal_bubble(1, 5) == 0


def test_nothing_to_do() -> None:
    table = simulate([(), ()], TIMES)
    assert (table.makespan, table.bubble) == (0, 0)


def test_deadlock_names_the_actions_that_wait() -> None:
    crossed = [parsed("F0.0 B0.0 F0.1 B0.1"), parsed("F1.0 F1.1 B1.0 B1.1")]
    with pytest.raises(ArgumentError, match=r"rank 0 at B0\.0 for B1\.0, rank 1 at F1\.1 for F0\.1"):
        simulate(crossed, TIMES)


def test_groups_that_grow_would_deadlock() -> None:
    """Why the larger groups of the interleaved schedule come first."""
    rows = """
        F0.0 F0.1 F2.0 F2.1 B2.0 F0.2 B2.1 F0.3 B0.0 F0.4 B0.1 F2.2 B2.2 F2.3 B2.3 F2.4 B2.4 B0.2 B0.3 B0.4
        F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F1.4 B3.2 F3.2 B3.3 F3.3 B3.4 F3.4 B1.2 B1.3 B1.4
    """
    with pytest.raises(ArgumentError, match=r"rank 0 at B2\.2 for B3\.2, rank 1 at B3\.2 for F3\.2"):
        simulate([parsed(row) for row in rows.strip().splitlines()], TIMES)


def test_an_action_that_nobody_does_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"rank 0 at F1\.0 for F0\.0 \(of 1 ranks\)"):
        simulate([parsed("F1.0")], TIMES)


def test_an_action_twice() -> None:
    with pytest.raises(ArgumentError, match=r"F0\.0 is done twice: by rank 0, and by rank 1"):
        simulate([parsed("F0.0"), parsed("F0.0")], TIMES)


def test_a_kind_without_a_time() -> None:
    with pytest.raises(ArgumentError, match="kind W"):
        simulate(plans("zb-h1", 1, 1), TIMES)
