"""What a step tells, put together from what its ranks report."""

import numpy as np
import pytest

from psframework.pipeline.clocks import Clocks
from psframework.pipeline.microbatch import split
from psframework.pipeline.outcome import Outcome, lanes, loss_of, outcome
from psframework.pipeline.plan import PipePlan, Report
from psframework.pipeline.timeline import Span
from tests.support.pipeline_world import travelled

PLAN = PipePlan("pipe", 1, (("a", "b"), ("c",)), 2, "1f1b", 0)
BATCH = split(np.zeros((5, 1)), np.zeros(5), 2)  # of 3 and 2 rows
REPORTS = [
    Report(spans=[("F", 0, 0, 1.0, 2.0)], peak={0: 2}),
    Report(spans=[("F", 0, 1, 1.5, 2.5), ("U", 0, 0, 5.0, 6.0)], peak={0: 3}),
    Report({0: 1.0, 1: 2.0}, spans=[("B", 1, 1, 13.0, 14.0), ("W", 1, 1, 14.0, 15.0)], peak={1: 1}),
]


def clocks() -> Clocks:
    found = Clocks("here")
    found.note("c", "there", 20.0, 10.0)
    return found


def test_spans_are_on_one_clock_and_each_service_has_a_lane() -> None:
    found = outcome(REPORTS, BATCH, PLAN, clocks())
    assert found.services == ("a", "b", "c") == lanes(PLAN)
    assert found.spans == [
        Span(0, 0, 0, "F", 1.0, 2.0),
        Span(1, 0, 1, "F", 1.5, 2.5),
        Span(1, 0, -1, "U", 5.0, 6.0),
        Span(2, 1, 1, "B", 3.0, 4.0),
        Span(2, 1, 1, "W", 4.0, 5.0),
    ]


def test_the_peak_of_a_stage_is_that_of_its_replica_with_most() -> None:
    assert outcome(REPORTS, BATCH, PLAN, clocks()).peak == {0: 3, 1: 1}


def test_losses_count_by_rows() -> None:
    assert loss_of(REPORTS, BATCH) == pytest.approx(1.0 * 3 / 5 + 2.0 * 2 / 5)


def test_it_travels() -> None:
    found = outcome(REPORTS, BATCH, PLAN, clocks())
    arrived = travelled(found)
    assert (
        isinstance(arrived, Outcome) and arrived.spans == found.spans and arrived.services == ("a", "b", "c")
    )


def test_a_step_without_spans() -> None:
    assert outcome([Report({0: 1.0, 1: 1.0})] * 3, BATCH, PLAN, clocks()).spans == []
