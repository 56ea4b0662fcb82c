"""Learning-rate schedules: pure functions of the step, which travel with the rule and run where it runs.

Steps count from 1, as in `UpdateRule.update`; `schedule(1)` is the rate of the first update.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

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
            values[field.name] = value.spec() if isinstance(value, Schedule) else value
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
        return self.minimum + (self.lr - self.minimum) * (1 + math.cos(math.pi * part)) / 2


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


def _value(where: str, declared: str, value: SpecValue) -> Rate:
    """A field's value, by its declared type: "int", "float" or "Rate"."""
    if declared == "Rate" and isinstance(value, Mapping):
        return schedule_from_spec(value)
    number = _number(where, value)
    if declared != "int":
        return number
    if not isinstance(value, int):
        raise ArgumentError(f"{where} must be a whole number, not {value!r}")
    return value
