"""The picture of a backward: lanes, labels, and how much communication was not hidden."""

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np

import psframework as psf
from psframework.ddp.bucket import Bucket
from psframework.ddp.step import Span, Step
from psframework.ddp.timeline import draw, exposed

NOTHING: Any = None


def step(flown: list[tuple[float, float]]) -> Step:
    made = Step(NOTHING, NOTHING)
    made.spent = [Span("backward 0", 10.0, 10.004), Span("backward 1", 10.004, 10.010)]
    made.flown = [Span(str(number), *times) for number, times in enumerate(flown)]
    return made


def bucket(index: int) -> Bucket:
    parameter = psf.tensor(np.zeros(256, np.float32), requires_grad=True)
    return Bucket(index, np.zeros(256, np.float32), [parameter], [f"layer<{index}>"], [0], NOTHING)


def test_what_ends_after_computing_is_not_hidden() -> None:
    assert exposed(step([(10.004, 10.006), (10.010, 10.010)])) == 0
    assert abs(exposed(step([(10.004, 10.006), (10.010, 10.013)])) - 0.003) < 1e-9
    assert exposed(step([])) == 0


def test_the_picture() -> None:
    drawing = draw(
        Span("forward", 9.998, 9.9995), step([(10.004, 10.006), (10.010, 10.013)]), [bucket(0), bucket(1)]
    )
    tree = ElementTree.fromstring(drawing.svg)
    assert tree.tag.endswith("svg")
    titles = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "forward: 1.50 ms", "backward 0: 4.00 ms", "backward 1: 6.00 ms",
        "bucket 0, 1 KiB: layer<0>: 2.00 ms", "bucket 1, 1 KiB: layer<1>: 3.00 ms",
    ]  # fmt: skip
    assert (
        "15.00 ms, 2 buckets of 2 KiB; communication not hidden by computation: 3.00 ms (20.0 %)"
        in drawing.svg
    )
    widths = [
        float(each) for each in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', drawing.svg)
    ]
    assert abs(widths[2] / widths[1] - 1.5) < 0.01


def test_only_what_nothing_hid_is_open() -> None:
    drawing = draw(
        Span("forward", 0.0),
        step([(10.001, 10.002), (10.006, 10.012), (10.012, 10.014)]),
        [*map(bucket, range(3))],
    )
    groups = [each for each in ElementTree.fromstring(drawing.svg) if each.get("class") == "bucket"]
    shares = []
    for group in groups:
        whole, *open_ = [each for each in group if each.tag.endswith("rect")]
        shares.append(sum(float(each.get("width", 0)) for each in open_) / float(whole.get("width", 0)))
        assert [each.get("class") for each in open_] == ["open"][: len(open_)]
    assert np.allclose(shares, [0, 1 / 3, 1], atol=0.01)  # backward ended at 10.010


def test_a_bucket_that_waited_for_the_one_before_begins_when_that_ends() -> None:
    drawing = draw(Span("forward", 0.0), step([(10.001, 10.008), (10.002, 10.009)]), [bucket(0), bucket(1)])
    assert "bucket 1, 1 KiB: layer&lt;1&gt;: 1.00 ms" in drawing.svg
    assert "forward:" not in drawing.svg
