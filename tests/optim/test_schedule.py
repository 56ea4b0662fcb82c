"""Learning-rate schedules against literal values."""

import json
from typing import Any

import pytest

from psframework.errors import ArgumentError
from psframework.optim import SGDRule
from psframework.optim.schedule import (
    Constant,
    Cosine,
    LinearWarmup,
    Schedule,
    Step,
    rate_at,
    rate_from_spec,
    rate_spec,
    schedule_from_spec,
)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Constant(0.5), {1: 0.5, 1000: 0.5}),
        (Step(1.0, 10, gamma=0.1), {1: 1.0, 10: 1.0, 11: 0.1, 20: 0.1, 21: 0.01}),
        (Cosine(1.0, 100), {1: 1.0, 51: 0.5, 101: 0.0, 500: 0.0}),
        (Cosine(1.0, 100, minimum=0.2), {1: 1.0, 51: 0.6, 101: 0.2, 500: 0.2}),
        (LinearWarmup(1.0, 4), {1: 0.0, 2: 0.25, 4: 0.75, 5: 1.0, 99: 1.0}),
        (LinearWarmup(2.0, 4, start=0.5), {1: 1.0, 3: 1.5, 5: 2.0}),
        (LinearWarmup(Cosine(1.0, 100), 10), {6: 0.5, 11: 1.0, 61: 0.5, 111: 0.0}),
    ],
)
def test_rates(schedule: Schedule, rates: dict[int, float]) -> None:
    assert {step: schedule(step) for step in rates} == pytest.approx(rates)
    assert schedule_from_spec(json.loads(json.dumps(schedule.spec()))) == schedule
    assert rate_from_spec(rate_spec(schedule)) == schedule
    assert SGDRule(lr=schedule).rate(1) == schedule(1)


def test_a_number_is_a_rate() -> None:
    assert rate_at(0.25, 7) == 0.25
    assert rate_from_spec(rate_spec(0.25)) == 0.25


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "exotic"}, "unknown schedule 'exotic'; known: constant, cosine"),
        ({"name": "cosine", "lr": 1}, "cosine: steps is missing"),
        ({"name": "cosine", "lr": 1, "steps": 0}, "cosine: steps must be at least 1"),
        ({"name": "cosine", "lr": 1, "steps": 1.5}, "cosine.steps must be a whole number"),
        ({"name": "cosine", "lr": 1, "steps": True}, "cosine.steps must be a finite number"),
        ({"name": "step", "lr": 1, "step_size": 1, "q": 1}, "step: unknown q"),
        ({"name": "linear_warmup", "after": {"name": "?"}, "steps": 1}, "unknown schedule"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        schedule_from_spec(spec)
