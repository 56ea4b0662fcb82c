"""Update rules: an optimizer's arithmetic on plain arrays, for local optimizers and parameter servers alike.

A rule is an immutable description (`AdamRule(lr=1e-3)`); its state is a dict of arrays that the caller keeps.
So a rule can be sent (`spec()`, `rule_from_spec`), compared, and run on any piece of a parameter.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from psframework.autograd.sparse import SparseRows
from psframework.backend import Array, DType, is_narrow, xp
from psframework.errors import ArgumentError
from psframework.optim.apply import MASTER, Job, Scalars, State, apply_blocks, run
from psframework.optim.blocks import (
    BLOCK,
    Scratch,
    block_size,
    blocks,
    on_device_of,
    row_blocks,
    run_blocks,
    scratch_for,
    set_update_threads,
    update_threads,
)
from psframework.optim.schedule import Rate, Schedule, SpecValue, rate_at, rate_from_spec, rate_spec

__all__ = [
    "BLOCK",
    "Grain",
    "Scalars",
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

Grain: TypeAlias = Literal["element", "row", "parameter"]
"""The smallest piece of a parameter that a rule can update by itself."""

_ndarray = np.ndarray
_FLOAT32: DType = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class UpdateRule(ABC):
    """The arithmetic of one optimizer, with its hyper-parameters.

    Subclasses are frozen dataclasses with a `name`. Most are elementwise: the result for an element depends
    on that element of the parameter, gradient and slots only, so a parameter may be cut anywhere. `grain`
    says what the others need: "row" whole rows (all that an index of the first axis selects), "parameter"
    numbers of the whole, which `measure_block` and `settled` gather in a pass of their own.

    float16 and bfloat16 parameters are updated in float32: their slots are float32, and a slot `master` keeps
    the bits that the parameter can't hold, so that small updates add up. A parameter that was written from
    outside wins over its master.

    Attributes:
        grain: the smallest piece of a parameter that the rule can update by itself.
        row_slots: slots that have one number for each row of the parameter.
        lr: learning rate, a number or a schedule.
        maximize: ascend instead of descend: the gradient counts with the other sign.
    """

    name: ClassVar[str]
    grain: ClassVar[Grain] = "element"
    row_slots: ClassVar[frozenset[str]] = frozenset()

    lr: Rate = 1e-3
    maximize: bool = dataclasses.field(default=False, kw_only=True)

    _registry: ClassVar[dict[str, type[UpdateRule]]] = {}
    _direct: ClassVar[bool]

    def __init_subclass__(cls) -> None:
        UpdateRule._registry[cls.name] = cls

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule):
            self._require(self.lr >= 0, "lr", "at least 0")
        # Whether whole arrays may go to `update_block` as they are.
        object.__setattr__(self, "_direct", self.grain == "element" and not self.maximize)
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
            c: what `coefficients` returned, in the dtype of `p`; then what `settled` made of it.
            scratch: temporaries; slots 0 and 1 are free here.
        """

    def measure_block(
        self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch
    ) -> tuple[Any, ...]:
        """For the grain "parameter", before any `update_block`: sums over one block; may write slots.

        Returns:
            Numbers, or arrays without axes, in double precision; they are added up over the blocks.
        """
        raise NotImplementedError(f"{self.name} measures nothing")

    def settled(self, c: Scalars, totals: tuple[Any, ...], dtype: DType) -> Scalars:
        """For the grain "parameter": the scalars of `update_block`, from the sums over all blocks."""
        return c

    def sparse_obstacle(self) -> str:
        """Why a gradient can't be applied to its rows alone; empty if it can."""
        return f"{self.name} has no form for it"

    def scalars(self, step: int, parameter: Array) -> Scalars:
        """`coefficients` as the arithmetic wants them: 0-d arrays, which NumPy takes up in half the time."""
        numbers = self.coefficients(step)
        if type(parameter) is not np.ndarray:
            return numbers
        dtype = _FLOAT32 if is_narrow(parameter.dtype) else parameter.dtype
        return tuple(np.asarray(number, dtype) for number in numbers)

    def init_state(self, parameter: Array) -> dict[str, Array]:
        """The slots of a parameter before its first step: its shape and dtype, float32 for half precision."""
        dtype = _FLOAT32 if is_narrow(parameter.dtype) else parameter.dtype
        full, shape = xp(parameter).full, parameter.shape
        with on_device_of(parameter):
            return {
                name: full(self.slot_shape(name, shape), value, dtype)
                for name, value in self.slot_values(parameter.dtype).items()
            }

    def slot_values(self, dtype: DType) -> Mapping[str, float]:
        """As `slots`, of a parameter of this dtype: in half precision it has `master`, too."""
        return {**self.slots(), MASTER: 0.0} if is_narrow(dtype) else self.slots()

    def slot_shape(self, slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a slot of a parameter of this shape."""
        return shape[:1] + (1,) * (len(shape) - 1) if slot in self.row_slots else shape

    def update(self, parameter: Array, gradient: Array | SparseRows, state: State, step: int) -> None:
        """One step in place. Threads may call this at once for disjoint arrays.

        Args:
            parameter: floating-point array of any shape and strides; updated in place.
            gradient: of the same shape; not changed. A sparse one changes its rows only.
            state: from `init_state` (or the same piece of it); updated in place.
            step: 1 for the first step.

        Raises:
            ArgumentError: shapes that differ, a parameter that isn't floating-point, or a sparse gradient
                where a step changes rows without a gradient, too (momentum, weight decay).
        """
        self.update_by(self.scalars(step, parameter), parameter, gradient, state)

    def update_by(
        self, scalars: Scalars, parameter: Array, gradient: Array | SparseRows, state: State
    ) -> None:
        """`update` by what `scalars()` returned for the step, which many parameters may share.

        A sparse gradient changes its rows only.
        """
        dtype = parameter.dtype
        if (
            type(parameter) is type(gradient) is _ndarray
            and parameter.size <= BLOCK
            and gradient.dtype is dtype
            and dtype.char in "fd"
            and gradient.shape == parameter.shape
            and self._direct
            and (not state or all(slot.shape == parameter.shape for slot in state.values()))
        ):
            # Small models spend their time on calls, not on arithmetic: nothing to cut, cast or sum.
            self.update_block(parameter, gradient, state, scalars, scratch_for(parameter))
        elif isinstance(gradient, SparseRows):
            self._update_rows(scalars, parameter, gradient.coalesce(), state)
        else:
            run(Job(self, scalars, parameter, (gradient,), 1, state, None))

    def _update_rows(self, scalars: Scalars, parameter: Array, gradient: SparseRows, state: State) -> None:
        """The rows without a gradient, and their slots, are neither read nor written."""
        if obstacle := self.sparse_obstacle():
            raise ArgumentError(
                f"{self.name} can't apply a sparse gradient to its rows alone: {obstacle}. Make the "
                "embedding with sparse=False, or use SGD without momentum, Adam, Adagrad, RowWiseAdagrad "
                "or FTRL"
            )
        cuts = list(row_blocks(gradient.values.shape, block_size(parameter)))

        def work(index: int) -> None:
            rows, values = gradient.rows[cuts[index]], gradient.values[cuts[index]]
            piece = parameter.take(rows, axis=0)
            pieces = {name: slot.take(rows, axis=0) for name, slot in state.items()}
            self.update_by(scalars, piece, values, pieces)
            parameter[rows] = piece
            for name, slot in pieces.items():
                state[name][rows] = slot

        with on_device_of(parameter):
            run_blocks(work, len(cuts), cost=3 if type(parameter) is _ndarray else 0)

    def require_elementwise(self, why: str) -> None:
        """Raises ArgumentError, with the reason, if the rule can't update any piece of a parameter."""
        if self.grain != "element":
            raise ArgumentError(
                f"{self.name} needs a whole {self.grain} at once, but {why}: use an elementwise optimizer "
                "there (SGD, Adam, AdamW, Adagrad, RMSprop, FTRL), or step locally with this one"
            )

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
