"""The picture is a real PNG of the run; its numbers are sums that hold."""

import math
from pathlib import Path

import pytest

from psframework.cli.demo import picture
from psframework.cli.demo.progress import Point, Progress

POINTS = [Point(0.1 * n, f"trainer-{k}", n, 1 / n, 1000 * n) for n in range(1, 101) for k in range(2)]


def test_draws_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    progress = Progress(total=100, points=POINTS, accuracies=[(1.0, 10, 1, 0.4), (9.0, 90, 9, 0.98)])
    for point in POINTS:
        progress.trainer(point.trainer).seconds.update(compute=3.0, server=1.0)
    assert picture.can_draw()
    picture.draw(progress, tmp_path / "deep" / "run.png", "a run")
    content = (tmp_path / "deep" / "run.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000, "three panels with lines in them"


def test_draws_a_run_that_ended_at_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    picture.draw(Progress(total=1), tmp_path / "run.png", "nothing")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_throughput_counts_every_step_and_byte() -> None:
    times, steps, megabytes = picture.throughput(POINTS)
    width = times[1] - times[0]
    assert math.isclose(sum(steps) * width, 200)
    assert math.isclose(sum(megabytes) * width, 0.2)
    assert picture.throughput([]) == ([], [], [])


def test_smooth_is_unbiased_and_skips_what_is_not_finite() -> None:
    assert picture.smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert picture.smooth([1.0, float("nan"), 1.0]) == pytest.approx([1.0, 1.0, 1.0])
    assert math.isnan(picture.smooth([float("inf")])[0])
