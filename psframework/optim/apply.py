"""One step of an update rule over one parameter: mean of the gradients, precision, blocks, threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psframework.backend import Array, DType, fused, is_floating, is_narrow
from psframework.errors import ArgumentError
from psframework.optim.blocks import (
    Cut,
    Scratch,
    block_size,
    blocks,
    on_device_of,
    row_blocks,
    run_blocks,
    scratch_for,
)

if TYPE_CHECKING:
    from psframework.optim.rule import UpdateRule

State: TypeAlias = dict[str, Array]
"""Slot name to array: of the parameter's shape, or with one number for each of its rows."""
Scalars: TypeAlias = tuple[Any, ...]
"""Numbers of one step: Python floats, or 0-d arrays of the update's dtype."""

MASTER = "master"
"""The slot that keeps a half-precision parameter in float32."""

_KERNEL_SLOTS = 2  # scratch slots 0 and 1 belong to the rules, the others to this module
_FLOAT32: DType = np.dtype(np.float32)
_BOOL: DType = np.dtype(np.bool_)


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
    run(Job(rule, rule.scalars(step, parameter), parameter, gradients, divisor, state, out))


@dataclasses.dataclass(slots=True)
class Job:
    """One step for one parameter; the fields are those of `apply_blocks`."""

    rule: UpdateRule
    scalars: Scalars
    parameter: Array
    gradients: tuple[Array, ...]
    divisor: int
    state: State
    out: Array | None

    def cuts(self) -> list[Cut]:
        """The pieces to update one by one."""
        shape, size = self.parameter.shape, block_size(self.parameter)
        if self.parameter.size <= size:
            return [(...,)]
        if self.rule.grain == "row":
            return list(row_blocks(shape, size))
        if all(array.flags.c_contiguous for array in self._arrays()):
            self._flatten()
        return list(blocks(self.parameter.shape, size))

    @property
    def cost(self) -> int:
        """Of a block, as `run_blocks` counts it: 0, no helpers, on a device, which has threads of its own."""
        return 1 + len(self.state) if type(self.parameter) is np.ndarray else 0

    def _arrays(self) -> tuple[Array, ...]:
        out = () if self.out is None else (self.out,)
        return (self.parameter, *self.gradients, *self.state.values(), *out)

    def _flatten(self) -> None:
        """Contiguous arrays as one axis, which is quicker to cut."""
        self.parameter = self.parameter.reshape(-1)
        self.gradients = tuple(gradient.reshape(-1) for gradient in self.gradients)
        self.state = {name: slot.reshape(-1) for name, slot in self.state.items()}
        self.out = None if self.out is None else self.out.reshape(-1)

    def measure(self, cuts: Sequence[Cut]) -> None:
        """The first pass of a rule that needs numbers of the whole parameter: they end up in `scalars`."""
        parts: list[tuple[Any, ...]] = [()] * len(cuts)

        def work(index: int) -> None:
            _, target, gradient, state, scratch = self._piece(cuts[index])
            parts[index] = self.rule.measure_block(target, gradient, state, self.scalars, scratch)

        run_blocks(work, len(cuts), self.cost)
        totals = parts[0]
        for part in parts[1:]:  # in this order, whichever thread was first
            totals = tuple(total + more for total, more in zip(totals, part))
        dtype = self.parameter.dtype
        self.scalars = self.rule.settled(self.scalars, totals, _FLOAT32 if is_narrow(dtype) else dtype)

    def update(self, cuts: Sequence[Cut], index: int) -> None:
        """Updates one piece."""
        cut = cuts[index]
        p, target, gradient, state, scratch = self._piece(cut)
        kernels = fused(target)
        if kernels is None or not kernels.update(self.rule, target, gradient, state, self.scalars):
            self.rule.update_block(target, gradient, state, self.scalars, scratch)
        if target is not p:
            p[...] = target
        if self.out is not None:
            self.out[cut] = p

    def _piece(self, cut: Cut) -> tuple[Array, Array, Array, State, Scratch]:
        """A piece of the parameter; what to update in its place, and by which gradient; its slots."""
        p, scratch = self.parameter[cut], scratch_for(self.parameter)
        state = {name: slot[cut] for name, slot in self.state.items()}
        target = _refreshed(state[MASTER], p, scratch) if MASTER in state else p
        if self.divisor == len(self.gradients) == 1 and self.gradients[0].dtype == target.dtype:
            gradient = self.gradients[0][cut]
        else:
            gradient = self._mean(cut, target, scratch)
        if self.rule.maximize:
            gradient = scratch.xp.negative(gradient, out=scratch.like(target, _KERNEL_SLOTS))
        return p, target, gradient, state, scratch

    def _mean(self, cut: Cut, like: Array, scratch: Scratch) -> Array:
        """The gradients' mean in the precision of the update."""
        total = scratch.like(like, _KERNEL_SLOTS)
        total[...] = self.gradients[0][cut]
        for gradient in self.gradients[1:]:
            scratch.xp.add(total, gradient[cut], out=total, casting="same_kind", dtype=like.dtype)
        if self.divisor != 1:
            scratch.xp.divide(total, self.divisor, out=total)
        return total


def run(job: Job) -> None:
    """Does the step."""
    _check(job)
    if not job.parameter.size:
        return
    cuts = job.cuts()
    with on_device_of(job.parameter):
        if job.rule.grain == "parameter":
            job.measure(cuts)
        run_blocks(partial(job.update, cuts), len(cuts), job.cost)


def _check(job: Job) -> None:
    rule, parameter = job.rule, job.parameter
    if not job.gradients:
        raise ArgumentError(f"{rule.name}: there is no gradient to apply")
    if not is_floating(parameter.dtype):
        raise ArgumentError(f"{rule.name}: can only update floating-point parameters, not {parameter.dtype}")
    if is_narrow(parameter.dtype) and MASTER not in job.state:
        raise ArgumentError(
            f"{rule.name}: a {parameter.dtype} parameter is updated in float32, but its state has no "
            f"{MASTER!r}: make the state, or the optimizer, after the parameter has its dtype"
        )
    shape = parameter.shape
    wanted = [("gradient", gradient, shape) for gradient in job.gradients]
    wanted += [(name, slot, rule.slot_shape(name, shape)) for name, slot in job.state.items()]
    if job.out is not None:
        wanted.append(("out", job.out, shape))
    for what, array, expected in wanted:
        if array.shape != expected:
            raise ArgumentError(
                f"{rule.name}: {what} of a parameter of shape {shape} must have shape {expected}, "
                f"not {array.shape}"
            )


def _refreshed(master: Array, p: Array, scratch: Scratch) -> Array:
    """The float32 copy of a half-precision parameter, corrected where somebody wrote another value."""
    rounded = scratch.like(p, _KERNEL_SLOTS)
    rounded[...] = master
    written = scratch.like(p, _KERNEL_SLOTS + 1, _BOOL)
    scratch.xp.not_equal(rounded, p, out=written)
    scratch.xp.copyto(master, p, where=written)  # unlike an index by a mask it does not wait for a device
    return master
