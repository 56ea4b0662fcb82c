"""Learning-rate schedules: pure functions of the step, which travel with the rule and run where it runs.

Steps count from 1, as in `UpdateRule.update`; `schedule(1)` is the rate of the first update.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from psframework.errors import ArgumentError

SpecValue: TypeAlias = bool | int | float | str | list["SpecValue"] | dict[str, "SpecValue"] | None
"""What JSON can hold."""


@dataclasses.dataclass(frozen=True)
class Schedule(ABC):
    """A learning rate that changes with the step."""

    name: ClassVar[str]
    _registry: ClassVar[dict[str, type[Schedule]]] = {}

    def __init_subclass__(cls) -> None:
        Schedule._registry[cls.name] = cls

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The rate of update number `step` (the first is 1)."""

    def spec(self) -> dict[str, SpecValue]:
        """The schedule as JSON-able values; `schedule_from_spec` inverts."""
        values: dict[str, SpecValue] = {"name": self.name}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Schedule):
                value = value.spec()
            values[field.name] = list(value) if isinstance(value, tuple) else value
        return values


Rate: TypeAlias = float | Schedule
"""A learning rate: a number or a schedule."""


def rate_at(rate: Rate, step: int) -> float:
    """The number that a rate is at a step."""
    return rate(step) if isinstance(rate, Schedule) else rate


def rate_spec(rate: Rate) -> SpecValue:
    """A rate as JSON-able values; `rate_from_spec` inverts."""
    return rate.spec() if isinstance(rate, Schedule) else rate


def rate_from_spec(value: SpecValue) -> Rate:
    """The rate that `rate_spec` described; ArgumentError if it is none."""
    if isinstance(value, Mapping):
        return schedule_from_spec(value)
    return _number("lr", value)


def _number(where: str, value: SpecValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentError(f"{where} must be a finite number, not {value!r}")
    return float(value)


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """Always `lr`."""

    name = "constant"
    lr: float

    def __call__(self, step: int) -> float:
        return self.lr


@dataclasses.dataclass(frozen=True)
class Step(Schedule):
    """`lr`, times `gamma` after every `step_size` steps (torch's StepLR)."""

    name = "step"
    lr: float
    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _at_least_one(self, "step_size", self.step_size)

    def __call__(self, step: int) -> float:
        return self.lr * self.gamma ** ((step - 1) // self.step_size)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """From `lr` down to `minimum` along half a cosine within `steps` steps, then `minimum`.

    Loshchilov and Hutter, SGDR (arXiv:1608.03983), one period; torch's CosineAnnealingLR up to its end.
    """

    name = "cosine"
    lr: float
    steps: int
    minimum: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps", self.steps)

    def __call__(self, step: int) -> float:
        part = min((step - 1) / self.steps, 1.0)
        return _half_cosine(self.lr, self.minimum, part)


@dataclasses.dataclass(frozen=True)
class MultiStep(Schedule):
    """`lr`, times `gamma` after each of the `milestones`, which count steps done (torch's MultiStepLR)."""

    name = "multi_step"
    lr: float
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))  # equal to what comes of a spec

    def __call__(self, step: int) -> float:
        return self.lr * math.pow(self.gamma, sum(milestone < step for milestone in self.milestones))


@dataclasses.dataclass(frozen=True)
class Exponential(Schedule):
    """`lr`, times `gamma` after every step (torch's ExponentialLR)."""

    name = "exponential"
    lr: float
    gamma: float

    def __call__(self, step: int) -> float:
        return self.lr * self.gamma ** (step - 1)


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """From `start` times `lr` to `end` times `lr` within `steps` steps, then that (torch's LinearLR)."""

    name = "linear"
    lr: float
    steps: int
    start: float = 1 / 3
    end: float = 1.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps", self.steps)

    def __call__(self, step: int) -> float:
        return self.lr * (self.start + (self.end - self.start) * min((step - 1) / self.steps, 1.0))


@dataclasses.dataclass(frozen=True)
class Polynomial(Schedule):
    """From `lr` to `minimum` within `steps` steps, as (1 - part done) ** power (torch's PolynomialLR)."""

    name = "polynomial"
    lr: float
    steps: int
    power: float = 1.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps", self.steps)

    def __call__(self, step: int) -> float:
        left = 1 - min((step - 1) / self.steps, 1.0)
        return self.minimum + (self.lr - self.minimum) * math.pow(left, self.power)


@dataclasses.dataclass(frozen=True)
class CosineWithRestarts(Schedule):
    """Half cosines from `lr` to `minimum`: one of `steps` steps, then each `factor` times as long.

    Loshchilov and Hutter, SGDR (arXiv:1608.03983); torch's CosineAnnealingWarmRestarts.
    """

    name = "cosine_with_restarts"
    lr: float
    steps: int
    factor: int = 1
    minimum: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps", self.steps)
        _at_least_one(self, "factor", self.factor)

    def __call__(self, step: int) -> float:
        done, period = step - 1, self.steps
        if self.factor == 1:
            done %= period
        while done >= period:
            done, period = done - period, period * self.factor
        return _half_cosine(self.lr, self.minimum, done / period)


@dataclasses.dataclass(frozen=True)
class OneCycle(Schedule):
    """Up from max_lr / div_factor to `max_lr`, then down to a `final_div_factor`-th of where it began.

    Smith and Topin, Super-Convergence (arXiv:1708.07120); torch's OneCycleLR, whose names these are. After
    `total_steps` the last rate stays. Momentum is not cycled along: it is a number of the rule.

    Args:
        max_lr: the highest rate.
        total_steps: length of the cycle.
        pct_start: the part of it that the rise takes.
        anneal_strategy: "cos" or "linear".
        div_factor: `max_lr` by the first rate.
        final_div_factor: the first rate by the last.
        three_phase: down to the first rate as fast as up, and only then to the last.
    """

    name = "one_cycle"
    max_lr: float
    total_steps: int
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        _at_least_one(self, "total_steps", self.total_steps)
        for field, holds, need in (
            ("pct_start", 0 <= self.pct_start <= 1, "in [0, 1]"),
            ("anneal_strategy", self.anneal_strategy in _ANNEAL, "'cos' or 'linear'"),
            ("div_factor", self.div_factor > 0, "above 0"),
            ("final_div_factor", self.final_div_factor > 0, "above 0"),
        ):
            if not holds:
                raise ArgumentError(f"one_cycle: {field} must be {need}, not {getattr(self, field)!r}")

    def __call__(self, step: int) -> float:
        first, last_step = self.max_lr / self.div_factor, self.total_steps - 1
        peak, last = self.pct_start * self.total_steps - 1, first / self.final_div_factor
        phases = [(peak, self.max_lr), (last_step, last)]  # each: its last step, and the rate there
        if self.three_phase:
            phases.insert(1, (2 * peak, first))
        done, begin, start = min(step - 1, last_step), 0.0, first
        end, goal = phases.pop(0)
        while done > end:
            begin, start = end, goal
            end, goal = phases.pop(0)
        return _ANNEAL[self.anneal_strategy](
            start, goal, (done - begin) / (end - begin) if end > begin else 1
        )


def _half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def _straight(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


_ANNEAL = {"cos": _half_cosine, "linear": _straight}


@dataclasses.dataclass(frozen=True)
class LinearWarmup(Schedule):
    """Rises linearly for `steps` steps, from `start` times the rate to the rate, then follows `after`.

    Args:
        after: the rate, a number or a schedule; a schedule begins when the warm-up ends.
        steps: length of the warm-up.
        start: the factor of the first step.
    """

    name = "linear_warmup"
    after: Rate
    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps", self.steps)

    def __call__(self, step: int) -> float:
        done = (step - 1) / self.steps
        if done >= 1:
            return rate_at(self.after, step - self.steps)
        return rate_at(self.after, 1) * (self.start + (1 - self.start) * done)


def _at_least_one(schedule: Schedule, field: str, value: int) -> None:
    if value < 1:
        raise ArgumentError(f"{schedule.name}: {field} must be at least 1, not {value!r}")


def schedule_from_spec(spec: Mapping[str, SpecValue]) -> Schedule:
    """The schedule that `spec()` described.

    Raises:
        ArgumentError: unknown schedule, missing or unknown value, or a value of the wrong type or range.
    """
    name = spec.get("name")
    kind = Schedule._registry.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArgumentError(f"unknown schedule {name!r}; known: {', '.join(sorted(Schedule._registry))}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {key: value for key, value in spec.items() if key != "name"}
    if unknown := sorted(set(values) - set(fields)):
        raise ArgumentError(f"{name}: unknown {', '.join(unknown)}; known: {', '.join(fields)}")
    needed = {key for key, field in fields.items() if field.default is dataclasses.MISSING}
    if missing := sorted(needed - set(values)):
        raise ArgumentError(f"{name}: {', '.join(missing)} is missing")
    return kind(**{key: _value(f"{name}.{key}", str(fields[key].type), v) for key, v in values.items()})


def _value(where: str, declared: str, value: SpecValue) -> Any:
    """A field's value, by its declared type."""
    if declared == "Rate" and isinstance(value, Mapping):
        return schedule_from_spec(value)
    if declared in ("str", "bool"):
        if type(value).__name__ != declared:
            raise ArgumentError(f"{where} must be a {declared}, not {value!r}")
        return value
    if declared == "tuple[int, ...]":
        if not isinstance(value, list | tuple):
            raise ArgumentError(f"{where} must be a list of whole numbers, not {value!r}")
        return tuple(_value(where, "int", item) for item in value)
    number = _number(where, value)
    if declared != "int":
        return number
    if not isinstance(value, int):
        raise ArgumentError(f"{where} must be a whole number, not {value!r}")
    return value
