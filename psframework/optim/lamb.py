"""LAMB: Adam with a rate for each parameter, for large batches (You et al., arXiv:1904.00962)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from psframework.backend import Array, DType, xp
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import Scalars, State, UpdateRule, average
from psframework.optim.schedule import Rate

_MEAN, _SQUARE = "exp_avg", "exp_avg_sq"


@dataclasses.dataclass(frozen=True)
class LAMBRule(UpdateRule):
    """LAMB's arithmetic. Slots: `exp_avg`, `exp_avg_sq`.

    u = Adam's bias-corrected step + weight_decay * p; then p -= lr * |p| / |u| * u, where the norms are of
    the whole parameter, and their quotient is 1 if one of them is 0 (or `adapt` is False).
    """

    name = "lamb"
    grain = "parameter"
    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    adapt: bool = True

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        self._require(len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "betas", "two in [0, 1)")
        self._require(self.eps >= 0, "eps", "at least 0")
        self._require(self.weight_decay >= 0, "weight_decay", "at least 0")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        return {_MEAN: 0.0, _SQUARE: 0.0}

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Rate; beta1, 1 - beta1, beta2, 1 - beta2; Adam's bias correction and eps (see AdamRule); decay."""
        beta1, beta2 = self.betas
        root = (1 - beta2**step) ** 0.5
        correction, eps = root / (1 - beta1**step), self.eps * root
        return self.rate(step), beta1, 1 - beta1, beta2, 1 - beta2, correction, eps, self.weight_decay

    def measure_block(
        self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch
    ) -> tuple[Any, ...]:
        """Updates the averages; the sums of squares of the parameter and of its step."""
        _, beta1, share1, beta2, share2, *_ = c
        t, multiply = scratch.like(p, 0), scratch.xp.multiply
        average(state[_MEAN], g, beta1, share1, scratch)
        average(state[_SQUARE], multiply(g, g, out=t), beta2, share2, scratch)
        if not self.adapt:
            return ()
        weights = multiply(p, p, out=t).sum(dtype=np.float64)
        step = self._step(p, state, c, scratch)
        return weights, multiply(step, step, out=step).sum(dtype=np.float64)

    def settled(self, c: Scalars, totals: tuple[Any, ...], dtype: DType) -> Scalars:
        """The rate times the trust ratio."""
        if not self.adapt:
            return c
        weights, steps = totals
        where, both = xp(weights).where, (weights > 0) & (steps > 0)
        ratio = xp(weights).sqrt(where(both, weights, 1.0) / where(both, steps, 1.0))
        return (c[0] * ratio).astype(dtype), *c[1:]

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place; the averages are those that `measure_block` left."""
        t = self._step(p, state, c, scratch)
        scratch.xp.multiply(t, c[0], out=t)
        scratch.xp.subtract(p, t, out=p)

    def _step(self, p: Array, state: State, c: Scalars, scratch: Scratch) -> Array:
        """Adam's step plus weight decay, in scratch slot 0."""
        *_, correction, eps, decay = c
        xp, t = scratch.xp, scratch.like(p, 0)
        xp.sqrt(state[_SQUARE], out=t)
        xp.add(t, eps, out=t)
        xp.divide(state[_MEAN], t, out=t)
        xp.multiply(t, correction, out=t)
        if self.weight_decay:
            xp.add(t, xp.multiply(p, decay, out=scratch.like(p, 1)), out=t)
        return t


class LAMB(Optimizer):
    """LAMB over parameters. Biases and gains of norms are best left alone, by a group of their own:

    `optim.LAMB([{"params": weights}, {"params": biases, "weight_decay": 0.0, "adapt": False}])`.
    """

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, LAMBRule(lr, betas, eps, weight_decay, adapt, maximize=maximize))
