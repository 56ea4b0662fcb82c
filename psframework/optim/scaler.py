"""Loss scaling for float16 (Micikevicius et al., Mixed Precision Training, arXiv:1710.03740; torch.amp)."""

from __future__ import annotations

import enum
import math
import weakref
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, widen, xp
from psframework.errors import ArgumentError
from psframework.optim.blocks import on_device_of
from psframework.optim.optimizer import Optimizer

T = TypeVar("T")

_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_LARGEST = float(np.finfo(np.float32).max)  # a scale that no float32 holds makes every gradient infinite


class _Stage(enum.Enum):
    READY = "ready"
    UNSCALED = "unscaled its gradients"
    STEPPED = "stepped"


class _Progress:
    """What was done with one optimizer since the last `update`."""

    def __init__(self) -> None:
        self.stage = _Stage.READY
        self.finite = True


class Grouped(Protocol):
    """As much of an optimizer as is needed to find its gradients."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Dicts with "params"."""
        ...


class GradScaler:
    """Scales the loss so that small gradients don't vanish in float16; skips steps that overflowed.

    The scale doubles after a while without overflow, and is halved by one. Per step:

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)                      # only if gradients are to be clipped
        optim.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)                          # not taken if a gradient is inf or NaN
        scaler.update()

    Gradients of 16-bit parameters are float32 once they are unscaled, so that nothing vanishes then either;
    the optimizer keeps such parameters in float32, too (slot `master`). Keep the loss itself in float32.

    Args:
        init_scale: first scale.
        growth_factor: what the scale grows by after `growth_interval` steps in a row without inf or NaN.
        backoff_factor: what it is multiplied by when there was one.
        growth_interval: number of steps.
        enabled: if False, nothing is scaled and each step is taken.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ):
        if not growth_factor > 1:
            raise ArgumentError(f"growth_factor must be above 1, not {growth_factor!r}")
        if not 0 < backoff_factor < 1:
            raise ArgumentError(f"backoff_factor must be in (0, 1), not {backoff_factor!r}")
        if not 0 < init_scale < math.inf or growth_interval < 1:
            raise ArgumentError(
                f"init_scale and growth_interval must be above 0, not {init_scale!r} and {growth_interval!r}"
            )
        self._scale, self._steps = float(init_scale), 0
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self._enabled = growth_interval, enabled
        self._progress: weakref.WeakKeyDictionary[Grouped, _Progress] = weakref.WeakKeyDictionary()

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale now; 1 if disabled."""
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: T) -> T:
        """A loss, or several in a list or tuple, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return cast(T, outputs * self._scale)
        if isinstance(outputs, list | tuple):
            return cast(T, type(outputs)(self.scale(output) for output in outputs))
        raise ArgumentError(f"scale takes a Tensor, or a list or tuple of them, not {type(outputs).__name__}")

    def unscale_(self, optimizer: Grouped) -> None:
        """Divides the gradients of an optimizer by the scale, once a step; before they are clipped, say.

        Raises:
            ArgumentError: it was done already in this step.
        """
        if not self._enabled:
            return
        progress = self._of(optimizer)
        if progress.stage is not _Stage.READY:
            raise ArgumentError(
                f"unscale_: this optimizer has {progress.stage.value} already: call scaler.update() after "
                "each step"
            )
        progress.finite = _divide(optimizer, self._scale)
        progress.stage = _Stage.UNSCALED

    def step(self, optimizer: Optimizer) -> bool:
        """Unscales if that is still to be done, and steps if all gradients are finite.

        Returns:
            Whether the step was taken.

        Raises:
            ArgumentError: a second step without `update` between.
        """
        ready = self.ready(optimizer)
        if ready:
            optimizer.step()
        return ready

    def ready(self, optimizer: Grouped) -> bool:
        """`step` for an optimizer that the caller steps: whether it is to be stepped."""
        if not self._enabled:
            return True
        progress = self._of(optimizer)
        if progress.stage is _Stage.STEPPED:
            raise ArgumentError(
                "step: this optimizer has stepped already: call scaler.update() after each step"
            )
        if progress.stage is _Stage.READY:
            self.unscale_(optimizer)
        progress.stage = _Stage.STEPPED
        return progress.finite

    def update(self, new_scale: float | None = None) -> None:
        """Adapts the scale; call it once after the steps of all optimizers.

        Args:
            new_scale: sets this scale instead.

        Raises:
            ArgumentError: no optimizer was stepped or unscaled since the last update.
        """
        if not self._enabled:
            return
        done = [progress for progress in self._progress.values() if progress.stage is not _Stage.READY]
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not done:
            raise ArgumentError(
                "update: no optimizer was stepped since the last update; use scaler.step(optimizer)"
            )
        else:
            self._adapt(all(progress.finite for progress in done))
        self._progress.clear()

    def _adapt(self, finite: bool) -> None:
        if not finite:
            self._scale, self._steps = self._scale * self.backoff_factor, 0
            return
        self._steps += 1
        if self._steps >= self.growth_interval:
            grown, self._steps = self._scale * self.growth_factor, 0
            self._scale = grown if grown <= _LARGEST else self._scale

    def state_dict(self) -> dict[str, Any]:
        """Scale and counters, as torch lays them out; empty if disabled."""
        if not self._enabled:
            return {}
        values = (self._scale, self.growth_factor, self.backoff_factor, self.growth_interval, self._steps)
        return dict(zip(_KEYS, values))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict()` returned.

        Raises:
            ArgumentError: a key is missing.
        """
        if not self._enabled:
            return
        if missing := [key for key in _KEYS if key not in state_dict]:
            raise ArgumentError(f"the state of a GradScaler needs {missing[0]!r}: was that one disabled?")
        scale, growth, backoff, interval, steps = (state_dict[key] for key in _KEYS)
        self._scale, self.growth_factor, self.backoff_factor = float(scale), float(growth), float(backoff)
        self.growth_interval, self._steps = int(interval), int(steps)

    def _of(self, optimizer: Grouped) -> _Progress:
        return self._progress.setdefault(optimizer, _Progress())


def _divide(optimizer: Grouped, scale: float) -> bool:
    """Divides all gradients by the scale; whether all of them are finite."""
    flags: list[Any] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad, finite = _divided(parameter.grad, scale)
                flags.append(finite)
    return all(bool(flag) for flag in flags)  # only now devices are waited for


def _divided(gradient: Array | SparseRows, scale: float) -> tuple[Array | SparseRows, Any]:
    """A gradient by the scale, in its own memory unless it has 16 bits; whether it is finite."""
    if isinstance(gradient, SparseRows):
        wide = SparseRows(
            gradient.rows, widen(gradient.values), gradient.shape, gradient.coalesced
        ).coalesce()
        values, finite = _divided(wide.values, scale)
        return SparseRows(wide.rows, cast(Array, values), wide.shape, coalesced=True), finite
    namespace = xp(gradient)
    with on_device_of(gradient):
        array = widen(gradient)
        out = array if getattr(array.flags, "writeable", True) else namespace.empty_like(array)
        namespace.multiply(array, 1 / scale, out=out)
        return out, namespace.isfinite(out).all()
