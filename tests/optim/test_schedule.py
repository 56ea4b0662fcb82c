"""Learning-rate schedules against literal values."""

import json
from typing import Any

import pytest

from psframework.errors import ArgumentError
from psframework.optim import SGDRule
from psframework.optim.schedule import (
    Constant,
    Cosine,
    CosineWithRestarts,
    Exponential,
    Linear,
    LinearWarmup,
    MultiStep,
    OneCycle,
    Polynomial,
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
        (MultiStep(1.0, (3, 5, 5), gamma=0.5), {1: 1.0, 3: 1.0, 4: 0.5, 5: 0.5, 6: 0.125, 99: 0.125}),
        (MultiStep(1.0, [3]), {3: 1.0, 4: 0.1}),  # type: ignore[arg-type]
        (Exponential(2.0, 0.5), {1: 2.0, 2: 1.0, 4: 0.25}),
        (Linear(1.0, 4, start=0.5), {1: 0.5, 3: 0.75, 5: 1.0, 99: 1.0}),
        (Polynomial(1.0, 4, power=2.0), {1: 1.0, 3: 0.25, 5: 0.0, 99: 0.0}),
        (Polynomial(1.0, 4, minimum=0.5), {1: 1.0, 3: 0.75, 5: 0.5, 99: 0.5}),
        (CosineWithRestarts(1.0, 10), {1: 1.0, 6: 0.5, 11: 1.0, 16: 0.5}),
        (CosineWithRestarts(1.0, 10, factor=2, minimum=0.2), {6: 0.6, 11: 1.0, 21: 0.6, 31: 1.0, 51: 0.6}),
        (OneCycle(1.0, 10, pct_start=0.5), {1: 0.04, 3: 0.52, 5: 1.0, 10: 4e-6, 500: 4e-6}),
        (OneCycle(1.0, 10, 0.5, "linear", 10.0, 10.0), {1: 0.1, 3: 0.55, 5: 1.0, 10: 0.01}),
        (OneCycle(1.0, 10, 0.3, "linear", 10.0, 10.0, True), {1: 0.1, 2: 0.55, 3: 1.0, 5: 0.1, 10: 0.01}),
        (OneCycle(1.0, 1), {1: 4e-6}),
        (OneCycle(1.0, 4, 0.25), {1: 1.0, 4: 4e-6}),
        (LinearWarmup(OneCycle(1.0, 4, 0.25), 2), {2: 0.5, 3: 1.0, 6: 4e-6}),
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
        ({"name": "multi_step", "lr": 1, "milestones": 3}, "multi_step.milestones must be a list of whole"),
        (
            {"name": "multi_step", "lr": 1, "milestones": [0.5]},
            "multi_step.milestones must be a whole number",
        ),
        ({"name": "one_cycle", "max_lr": 1, "total_steps": 0}, "one_cycle: total_steps must be at least 1"),
        (
            {"name": "one_cycle", "max_lr": 1, "total_steps": 9, "pct_start": 2},
            r"pct_start must be in \[0, 1\]",
        ),
        ({"name": "one_cycle", "max_lr": 1, "total_steps": 9, "anneal_strategy": "x"}, "'cos' or 'linear'"),
        (
            {"name": "one_cycle", "max_lr": 1, "total_steps": 9, "anneal_strategy": 1},
            "strategy must be a str",
        ),
        (
            {"name": "one_cycle", "max_lr": 1, "total_steps": 9, "three_phase": 1},
            "three_phase must be a bool",
        ),
        ({"name": "one_cycle", "max_lr": 1, "total_steps": 9, "div_factor": 0}, "div_factor must be above 0"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        schedule_from_spec(spec)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("schedule", "theirs", "options"),
    [
        (Step(0.3, 7, 0.5), "StepLR", {"step_size": 7, "gamma": 0.5}),
        (MultiStep(0.3, (3, 9, 9), 0.5), "MultiStepLR", {"milestones": [3, 9, 9], "gamma": 0.5}),
        (Exponential(0.3, 0.9), "ExponentialLR", {"gamma": 0.9}),
        (Cosine(0.3, 40, 0.1), "CosineAnnealingLR", {"T_max": 40, "eta_min": 0.1}),
        (CosineWithRestarts(0.3, 7), "CosineAnnealingWarmRestarts", {"T_0": 7}),
        (
            CosineWithRestarts(0.3, 5, 2, 0.1),
            "CosineAnnealingWarmRestarts",
            {"T_0": 5, "T_mult": 2, "eta_min": 0.1},
        ),
        (Linear(0.3, 20), "LinearLR", {"total_iters": 20}),
        (Linear(0.3, 20, 1.0, 0.1), "LinearLR", {"start_factor": 1, "end_factor": 0.1, "total_iters": 20}),
        (Polynomial(0.3, 20, 2.0), "PolynomialLR", {"total_iters": 20, "power": 2.0}),
        (OneCycle(0.3, 40), "OneCycleLR", {"max_lr": 0.3, "total_steps": 40}),
        (
            OneCycle(0.3, 40, 0.4, "linear", 10.0, 100.0, True),
            "OneCycleLR",
            {
                "max_lr": 0.3, "total_steps": 40, "pct_start": 0.4, "anneal_strategy": "linear",
                "div_factor": 10.0, "final_div_factor": 100.0, "three_phase": True,
            },
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else "",
)  # fmt: skip
def test_equals_torch(schedule: Schedule, theirs: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3, momentum=0.9)
    scheduler = getattr(torch.optim.lr_scheduler, theirs)(optimizer, **options)
    expected = []
    for _ in range(40):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert [schedule(step) for step in range(1, 41)] == pytest.approx(expected, rel=1e-12, abs=1e-15)
