"""Update rules: an optimizer's arithmetic on plain arrays, for local optimizers and parameter servers alike.

A rule is an immutable description (`AdamRule(lr=1e-3)`); its state is a dict of arrays that the caller keeps.
So a rule can be sent (`spec()`, `rule_from_spec`), compared, and run on any piece of a parameter.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from psframework.backend import Array, DType, is_floating, is_narrow, xp
from psframework.errors import ArgumentError
from psframework.optim.blocks import (
    BLOCK,
    Scratch,
    block_size,
    blocks,
    run_blocks,
    scratch_for,
    set_update_threads,
    update_threads,
)
from psframework.optim.schedule import Rate, Schedule, SpecValue, rate_at, rate_from_spec, rate_spec

__all__ = [
    "BLOCK",
    "State",
    "UpdateRule",
    "apply_blocks",
    "average",
    "blocks",
    "penalised",
    "rule_from_spec",
    "set_update_threads",
    "update_threads",
]

State: TypeAlias = dict[str, Array]
"""Slot name to array of the parameter's shape."""
Scalars: TypeAlias = tuple[Any, ...]
"""Numbers of one step: Python floats, or 0-d arrays of the update's dtype."""

Cut: TypeAlias = Any
"""An index that cuts a block out of an array."""

_MASTER = "master"
_KERNEL_SLOTS = 2  # scratch slots 0 and 1 belong to the rules, the others to this module
_FLOAT32: DType = np.dtype(np.float32)
_BOOL: DType = np.dtype(np.bool_)


@dataclasses.dataclass(frozen=True)
class UpdateRule(ABC):
    """The arithmetic of one optimizer, with its hyper-parameters.

    Subclasses are frozen dataclasses with a `name`, and are elementwise: the result for an element depends on
    that element of the parameter, gradient and slots only.

    float16 and bfloat16 parameters are updated in float32: their slots are float32, and a slot `master` keeps
    the bits that the parameter can't hold, so that small updates add up. A parameter that was written from
    outside wins over its master.
    """

    name: ClassVar[str]
    lr: Rate = 1e-3

    _registry: ClassVar[dict[str, type[UpdateRule]]] = {}

    def __init_subclass__(cls) -> None:
        UpdateRule._registry[cls.name] = cls

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule):
            self._require(self.lr >= 0, "lr", "at least 0")
        self.check()

    def _require(self, holds: bool, field: str, need: str) -> None:
        if not holds:
            raise ArgumentError(f"{self.name}: {field} must be {need}, not {getattr(self, field)!r}")

    def check(self) -> None:  # noqa: B027 - a rule without limits of its own needs no check
        """Raises ArgumentError if a hyper-parameter is out of range."""

    @abstractmethod
    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""

    @abstractmethod
    def coefficients(self, step: int) -> tuple[float, ...]:
        """The numbers that the arithmetic of this step uses, worked out once in double precision."""

    @abstractmethod
    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place: `p`, `g` and slots have one shape and dtype; `g` must not be written.

        Args:
            c: what `coefficients` returned, in the dtype of `p`.
            scratch: temporaries; slots 0 and 1 are free here.
        """

    def scalars(self, step: int, parameter: Array) -> Scalars:
        """`coefficients` as the arithmetic wants them: 0-d arrays, which NumPy takes up in half the time."""
        numbers = self.coefficients(step)
        if type(parameter) is not np.ndarray:
            return numbers
        dtype = _FLOAT32 if is_narrow(parameter.dtype) else parameter.dtype
        return tuple(np.asarray(number, dtype) for number in numbers)

    def init_state(self, parameter: Array) -> dict[str, Array]:
        """The slots of a parameter before its first step: its shape and dtype, float32 for half precision."""
        half = is_narrow(parameter.dtype)
        dtype = _FLOAT32 if half else parameter.dtype
        full = xp(parameter).full
        state: dict[str, Array] = {name: full(parameter.shape, v, dtype) for name, v in self.slots().items()}
        if half:
            state[_MASTER] = full(parameter.shape, 0, dtype)
        return state

    def update(self, parameter: Array, gradient: Array, state: State, step: int) -> None:
        """One step in place. Threads may call this at once for disjoint arrays.

        Args:
            parameter: floating-point array of any shape and strides; updated in place.
            gradient: of the same shape; not changed.
            state: from `init_state` (or the same piece of it); updated in place.
            step: 1 for the first step.
        """
        self.update_by(self.scalars(step, parameter), parameter, gradient, state)

    def update_by(self, scalars: Scalars, parameter: Array, gradient: Array, state: State) -> None:
        """`update` by what `scalars()` returned for the step, which many parameters may share."""
        dtype = parameter.dtype
        if (
            type(parameter) is np.ndarray
            and parameter.size <= BLOCK
            and gradient.dtype is dtype
            and dtype.char in "fd"
            and gradient.shape == parameter.shape
            and (not state or all(slot.shape == parameter.shape for slot in state.values()))
        ):
            # Small models spend their time on calls, not on arithmetic: nothing to cut, cast or sum.
            self.update_block(parameter, gradient, state, scalars, scratch_for(parameter))
        else:
            _run(_Job(self, scalars, parameter, (gradient,), 1, state, None))

    def rate(self, step: int) -> float:
        """The learning rate of a step (the first is 1)."""
        return rate_at(self.lr, step)

    def spec(self) -> dict[str, SpecValue]:
        """The rule as JSON-able values; `rule_from_spec` inverts."""
        values: dict[str, SpecValue] = {"name": self.name}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "lr":
                values[field.name] = rate_spec(value)
            else:
                values[field.name] = list(value) if isinstance(value, tuple) else value
        return values


def penalised(p: Array, g: Array, weight_decay: Any, scratch: Scratch) -> Array:
    """g + weight_decay * p, the gradient with the L2 penalty's, in scratch slot 1."""
    total = scratch.like(p, 1)
    scratch.xp.multiply(p, weight_decay, out=total)
    scratch.xp.add(total, g, out=total)
    return total


def average(slot: Array, value: Array, decay: Any, share: Any, scratch: Scratch) -> None:
    """slot = decay * slot + share * value, in place; overwrites scratch slot 0 (`value` may be it)."""
    xp, t = scratch.xp, scratch.like(slot, 0)
    xp.multiply(slot, decay, out=slot)
    xp.multiply(value, share, out=t)
    xp.add(slot, t, out=slot)


def rule_from_spec(spec: Mapping[str, SpecValue]) -> UpdateRule:
    """The rule that `spec()` described.

    Raises:
        ArgumentError: unknown rule or hyper-parameter, or a value of the wrong type or range.
    """
    name = spec.get("name")
    kind = UpdateRule._registry.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArgumentError(f"unknown update rule {name!r}; known: {', '.join(sorted(UpdateRule._registry))}")
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    values = {key: value for key, value in spec.items() if key != "name"}
    if unknown := sorted(set(values) - set(defaults)):
        raise ArgumentError(f"{name}: unknown {', '.join(unknown)}; known: {', '.join(defaults)}")
    return kind(**{key: _field(f"{name}.{key}", key, value, defaults[key]) for key, value in values.items()})


def _field(where: str, key: str, value: SpecValue, default: object) -> Any:
    if key == "lr":
        return rate_from_spec(value)
    if isinstance(default, tuple):
        if isinstance(value, list | tuple) and len(value) == len(default):
            return tuple(_field(where, "", v, d) for v, d in zip(value, default))
    elif isinstance(default, bool) or isinstance(value, bool):
        if isinstance(default, bool) and isinstance(value, bool):
            return value
    elif isinstance(value, int | float):
        return float(value)
    raise ArgumentError(f"{where} must be like {default!r}, not {value!r}")


def apply_blocks(
    rule: UpdateRule,
    parameter: Array,
    gradient: Array | Sequence[Array],
    state: State,
    step: int,
    out: Array | None = None,
    contributors: int | None = None,
) -> None:
    """One step in place, as `UpdateRule.update`, and what a parameter-server shard needs besides.

    Args:
        rule: the arithmetic.
        parameter: updated in place.
        gradient: one array, or several: their mean is applied, summed in the given order (in the precision of
            the update: float32 for half-precision parameters), then divided by `contributors`.
        state: the parameter's slots.
        step: 1 for the first step.
        out: another array of the shape that gets the new values while each block is still in the cache.
        contributors: what the sum is divided by; the number of gradients if None.

    Raises:
        ArgumentError: shapes that differ, no gradient, a parameter that isn't floating-point.
    """
    gradients = tuple(gradient) if isinstance(gradient, Sequence) else (gradient,)
    divisor = contributors or len(gradients)
    _run(_Job(rule, rule.scalars(step, parameter), parameter, gradients, divisor, state, out))


@dataclasses.dataclass(slots=True)
class _Job:
    """One step for one parameter."""

    rule: UpdateRule
    scalars: Scalars
    parameter: Array
    gradients: tuple[Array, ...]
    divisor: int
    state: State
    out: Array | None

    def arrays(self) -> tuple[Array, ...]:
        out = () if self.out is None else (self.out,)
        return (self.parameter, *self.gradients, *self.state.values(), *out)

    def flatten(self) -> None:
        """Contiguous arrays as one axis, which is quicker to cut."""
        self.parameter = self.parameter.reshape(-1)
        self.gradients = tuple(gradient.reshape(-1) for gradient in self.gradients)
        self.state = {name: slot.reshape(-1) for name, slot in self.state.items()}
        self.out = None if self.out is None else self.out.reshape(-1)

    def run_block(self, cuts: Sequence[Cut], index: int) -> None:
        cut = cuts[index]
        p, scratch = self.parameter[cut], scratch_for(self.parameter)
        state = {name: slot[cut] for name, slot in self.state.items()}
        target = _refreshed(state[_MASTER], p, scratch) if _MASTER in state else p
        if self.divisor == len(self.gradients) == 1 and self.gradients[0].dtype == target.dtype:
            gradient = self.gradients[0][cut]
        else:
            gradient = self._mean(cut, target, scratch)
        self.rule.update_block(target, gradient, state, self.scalars, scratch)
        if target is not p:
            p[...] = target
        if self.out is not None:
            self.out[cut] = p

    def _mean(self, cut: Cut, like: Array, scratch: Scratch) -> Array:
        """The gradients' mean in the precision of the update."""
        total = scratch.like(like, _KERNEL_SLOTS)
        total[...] = self.gradients[0][cut]
        for gradient in self.gradients[1:]:
            scratch.xp.add(total, gradient[cut], out=total, casting="same_kind", dtype=like.dtype)
        if self.divisor != 1:
            scratch.xp.divide(total, self.divisor, out=total)
        return total


def _run(job: _Job) -> None:
    arrays = job.arrays()
    _check(job, arrays)
    size = block_size(job.parameter)
    if job.parameter.size <= size:
        job.run_block((...,), 0)
        return
    if all(array.flags.c_contiguous for array in arrays):
        job.flatten()
    cuts = list(blocks(job.parameter.shape, size))
    run_blocks(partial(job.run_block, cuts), len(cuts), cost=1 + len(job.state))


def _check(job: _Job, arrays: Sequence[Array]) -> None:
    name, parameter = job.rule.name, job.parameter
    if not job.gradients:
        raise ArgumentError(f"{name}: there is no gradient to apply")
    for array in arrays:
        if array.shape != parameter.shape:
            raise ArgumentError(
                f"{name}: gradient, slots and out must have the parameter's shape {parameter.shape}; "
                f"one has {array.shape}"
            )
    if not is_floating(parameter.dtype):
        raise ArgumentError(f"{name}: can only update floating-point parameters, not {parameter.dtype}")


def _refreshed(master: Array, p: Array, scratch: Scratch) -> Array:
    """The float32 copy of a half-precision parameter, corrected where somebody wrote another value."""
    rounded = scratch.like(p, _KERNEL_SLOTS)
    rounded[...] = master
    written = scratch.like(p, _KERNEL_SLOTS + 1, _BOOL)
    scratch.xp.not_equal(rounded, p, out=written)
    master[written] = p[written]
    return master
