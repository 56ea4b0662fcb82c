"""Bars along an axis of time."""

import re
from xml.etree import ElementTree

import pytest

from psframework.autograd.lanes import Lanes

SVG = "{http://www.w3.org/2000/svg}"


def drawn(lanes, parts):
    return ElementTree.fromstring(lanes.page(parts, "\n  .own rect { fill: red; }", " .own rect { }"))


def rects(group):
    return [
        {key: float(value) for key, value in each.items() if key in "xy width height"}
        for each in group.iter(f"{SVG}rect")
    ]


def test_a_bar_is_where_and_as_long_as_its_time():
    lanes = Lanes(["above", "below"], 2.0, 4.0)
    parts = [lanes.bar(lane, "own", "it", *times, "it") for lane, *times in ((0, 2.0, 3.0), (1, 3.0, 3.5))]
    (first,), (second,) = (rects(group) for group in drawn(lanes, parts).iter(f"{SVG}g"))
    assert first["width"] == pytest.approx(2 * second["width"], abs=0.2)
    assert second["x"] == pytest.approx(first["x"] + first["width"], abs=0.2)
    assert second["y"] > first["y"] + first["height"]


def test_a_label_stands_in_a_bar_that_has_room():
    lanes = Lanes(["lane"], 0.0, 1.0)
    wide, narrow = (
        lanes.bar(0, "own", "label", 0, 0.5, "title<"),
        lanes.bar(0, "own", "label", 0, 1e-6, "title"),
    )
    assert ">label</text>" in wide
    assert ">500.00 ms</text>" in wide
    assert "<text" not in narrow
    assert "<title>title&lt;: 500.00 ms</title>" in wide
    assert rects(drawn(lanes, [narrow]))[0]["width"] == 1  # it is seen


@pytest.mark.parametrize(("since", "share"), [(0.0, 1.0), (0.25, 0.5), (0.5, None)])
def test_the_open_part_of_a_bar(since, share):
    whole, *open_ = rects(
        drawn(lanes := Lanes(["lane"], 0.0, 1.0), [lanes.bar(0, "own", "", 0.0, 0.5, "", since)])
    )
    assert [each["width"] / whole["width"] for each in open_] == (
        [] if share is None else [pytest.approx(share, abs=1e-3)]
    )


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (1.1e-3, ["0 ms", "0.2 ms", "0.4 ms", "0.6 ms", "0.8 ms", "1 ms"]),
        (0.055, ["0 ms", "10 ms", "20 ms", "30 ms", "40 ms", "50 ms"]),
        (2.1, ["0 ms", "500 ms", "1000 ms", "1500 ms", "2000 ms"]),
    ],
)
def test_the_axis_has_round_numbers(seconds, labels):
    parts = Lanes(["<one>", "two"], 7.0, 7.0 + seconds).axis()
    texts = re.findall(r">([^<]+)</text>", "".join(parts))
    assert texts == ["&lt;one&gt;", "two", *labels]


def test_no_time_at_all_can_be_drawn():
    lanes = Lanes(["lane"], 3.0, 3.0)
    tree = drawn(lanes, [*lanes.axis(), lanes.bar(0, "own", "it", 3.0, 3.0, "it"), lanes.summary("a & b")])
    assert lanes.seconds == 1e-6
    assert "a & b" in [each.text for each in tree.iter(f"{SVG}text")]


def test_long_names_have_room():
    def left(name):
        return rects(drawn(lanes := Lanes([name], 0.0, 1.0), [lanes.bar(0, "own", "", 0.0, 1.0, "")]))[0]["x"]

    assert left("short") == 120
    assert left("a" * 40) > 6.6 * 40
