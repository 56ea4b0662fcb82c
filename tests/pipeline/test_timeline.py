"""The picture of a step: lanes, bars, what was idle, and the bubble."""

from collections import Counter
from xml.etree import ElementTree

import pytest

from psframework.errors import ArgumentError
from psframework.pipeline.schedule import Kind, actions
from psframework.pipeline.timeline import Span, bubble, draw
from psframework.pipeline.timetable import ideal_bubble, simulate

SVG = "{http://www.w3.org/2000/svg}"

# GPipe, 2 ranks, 2 micro-batches: F takes 1 ms, B 2 ms; each rank waits 3 of 9 ms.
GPIPE = [
    Span(0, 0, 0, "F", 5.000, 5.001), Span(0, 0, 1, "F", 5.001, 5.002),
    Span(1, 1, 0, "F", 5.001, 5.002), Span(1, 1, 1, "F", 5.002, 5.003),
    Span(1, 1, 0, "B", 5.003, 5.005), Span(1, 1, 1, "B", 5.005, 5.007),
    Span(0, 0, 0, "B", 5.005, 5.007), Span(0, 0, 1, "B", 5.007, 5.009),
]  # fmt: skip


def groups(svg):
    return [each for each in ElementTree.fromstring(svg) if each.tag == f"{SVG}g"]


def test_the_bubble_of_literal_spans():
    assert bubble(GPIPE) == pytest.approx(3 / 9)
    assert bubble(GPIPE[::-1]) == pytest.approx(3 / 9)
    assert bubble(GPIPE[:2]) == pytest.approx(0)
    assert bubble([Span(1, 1, 0, "F", 1.0, 2.0)]) == pytest.approx(0.5)  # rank 0 did nothing
    assert bubble([]) == bubble([Span(0, 0, 0, "F", 1.0, 1.0)]) == 0


def test_what_overlaps_is_busy_once():
    spans = [Span(0, 0, 0, "F", 0.0, 3.0), Span(0, 0, 1, "F", 1.0, 2.0), Span(0, 0, 2, "F", 4.0, 5.0)]
    assert bubble(spans) == pytest.approx(1 / 5)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8)])
def test_the_bubble_of_a_simulated_step_is_the_ideal_one(ranks, microbatches):
    plans = [actions("1f1b", rank, ranks, microbatches) for rank in range(ranks)]
    table = simulate(plans, {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0})
    spans = [
        Span(rank, timed.action.stage, timed.action.microbatch, timed.action.kind, timed.began, timed.ended)
        for rank, row in enumerate(table.spans)
        for timed in row
    ]
    assert bubble(spans) == pytest.approx(ideal_bubble(ranks, microbatches))
    assert f"bubble: {100 * table.bubble:.1f} %" in draw(spans, [f"rank {rank}" for rank in range(ranks)]).svg


def test_the_picture():
    found = groups(draw([*GPIPE, Span(0, 0, -1, "U", 5.009, 5.010)], ["one", "<two>"]).svg)
    assert Counter(group.get("class") for group in found) == {
        "idle": 3, "forward": 4, "backward": 4, "update": 1,
    }  # fmt: skip
    titles = [group.findtext(f"{SVG}title") for group in found]
    assert titles[:3] == ["idle: 3.00 ms", "idle: 1.00 ms", "idle: 3.00 ms"]
    assert "backward, stage 1, micro-batch 0: 2.00 ms" in titles
    assert titles[-1] == "update, stage 0: 1.00 ms"


def test_names_of_lanes_and_the_summary():
    svg = draw(GPIPE, ["one", "<two>"]).svg
    words = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert words[:2] == ["one", "<two>"]
    assert words[-1] == "9.00 ms; bubble: 33.3 %; F forward, B backward; hatched: idle"
    assert {"F0.1", "B1.0"} < set(words)


def test_lanes_lie_below_each_other_and_idle_fills_them():
    wide: dict[float, float] = {}
    for group in groups(draw(GPIPE, ["one", "two"]).svg):
        (rect,) = group.iter(f"{SVG}rect")
        wide[float(rect.get("y"))] = wide.get(float(rect.get("y")), 0) + float(rect.get("width"))
    (first, whole), (second, other) = sorted(wide.items())
    assert first < second
    assert whole == pytest.approx(other, abs=1)


def test_a_weight_action_has_its_own_colour():
    (group,) = groups(draw([Span(0, 3, 2, Kind.WEIGHT, 0.0, 0.001)], ["one"]).svg)
    assert group.get("class") == "weights"
    assert group.findtext(f"{SVG}text") == "W3.2"


def test_it_is_written(tmp_path):
    drawing = draw(GPIPE, ["one", "two"], tmp_path / "new" / "run.svg")
    assert (tmp_path / "new" / "run.svg").read_text() == drawing.svg


def test_what_cannot_be_drawn():
    with pytest.raises(ArgumentError, match="no step has ended yet"):
        draw([], ["one"])
    with pytest.raises(ArgumentError, match="spans of rank 1, but 1 names of ranks"):
        draw(GPIPE, ["one"])
