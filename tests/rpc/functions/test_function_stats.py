"""Figures of functions: counts, and percentiles within their bucket."""

import random

import pytest

from psframework.rpc.functions.function_stats import End, FunctionStats, Histogram


def test_counts() -> None:
    stats = FunctionStats()
    for end in (End.RETURNED, End.RAISED, End.RAISED, End.CANCELLED):
        stats.begin()
        assert stats.running == 1
        stats.end(end, 0.5)
    assert (stats.calls, stats.errors, stats.cancelled, stats.running) == (4, 2, 1, 0)
    assert stats.times.count == 4 and stats.times.total == 2.0


@pytest.mark.parametrize("scale", [2e-6, 1e-3, 0.5, 3600.0])
def test_percentiles_are_right_within_a_bucket(scale: float) -> None:
    histogram, generator = Histogram(), random.Random(3)
    times = sorted(scale * generator.lognormvariate(0, 1) for _ in range(1000))
    for seconds in times:
        histogram.add(seconds)
    for share in (0.5, 0.9, 0.99):
        exact = times[int(share * 1000) - 1]
        assert max(exact, 1e-6) * 0.99 <= histogram.percentile(share) <= max(exact, 1e-6) * 1.1


def test_extremes() -> None:
    histogram = Histogram()
    assert histogram.percentile(0.5) == 0
    for seconds in (0.0, -1.0, 1e-9, 1e9):
        histogram.add(seconds)
    assert histogram.percentile(0.5) == 1e-6 and histogram.percentile(1.0) > 3600
