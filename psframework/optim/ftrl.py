"""FTRL-Proximal (McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013; tf.keras Ftrl)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from psframework.backend import Array
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import Scalars, State, UpdateRule
from psframework.optim.schedule import Rate, Schedule

_SQUARES, _LINEAR = "accumulator", "linear"
_LEAST_RATE = 1e-10  # in place of 0, the end of a cosine: it is divided by


@dataclasses.dataclass(frozen=True)
class FTRLRule(UpdateRule):
    """FTRL-Proximal's arithmetic; with l1 > 0 parameters that matter little become exactly 0.

    With n' = n + g^2 and 1/eta(n) = (beta + n^-lr_power) / lr: z += g - (1/eta(n') - 1/eta(n)) * p, then
    p = (clip(z, -l1, l1) - z) / (1/eta(n') + 2 * l2). Slots: `accumulator` n, `linear` z.

    Where TensorFlow differs from the paper (2 * l2, the accumulator's first value) this is TensorFlow's.
    Where `lr` is a schedule it is the paper's: 1/eta(n) has the rate of the step before, so that a new rate
    does not scale the parameters. As z begins with 0, a parameter that does not fades with the first step.
    """

    name = "ftrl"
    lr: Rate = 1e-3
    lr_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    beta: float = 0.0

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        self._require(self.lr_power <= 0, "lr_power", "at most 0")
        for field in ("initial_accumulator_value", "l1", "l2", "l2_shrinkage", "beta"):
            self._require(getattr(self, field) >= 0, field, "at least 0")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        return {_SQUARES: self.initial_accumulator_value, _LINEAR: 0.0}

    def sparse_obstacle(self) -> str:
        """Without a gradient a row stays as it is; but a new rate changes z everywhere."""
        return "its schedule changes every row in each step" if isinstance(self.lr, Schedule) else ""

    def coefficients(self, step: int) -> tuple[float, ...]:
        """1 / lr now and at the step before, what else sigma holds, -l1 and l1, the constant part of the
        divisor, the factor of the shrinkage, -lr_power."""
        now, before = (1 / max(self.rate(max(i, 1)), _LEAST_RATE) for i in (step, step - 1))
        change = self.beta * (now - before)
        divisor = self.beta * now + 2 * self.l2
        return now, before, change, -self.l1, self.l1, divisor, 2 * self.l2_shrinkage, -self.lr_power

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place."""
        now, before, change, low, high, divisor, shrinkage, power = c
        xp = scratch.xp
        squares, linear = state[_SQUARES], state[_LINEAR]
        t, root = scratch.like(p, 0), scratch.like(p, 1)
        self._root(squares, power, t, xp)
        xp.multiply(t, before, out=t)
        xp.add(linear, g, out=linear)
        if self.l2_shrinkage:
            xp.add(linear, xp.multiply(p, shrinkage, out=root), out=linear)
        xp.add(squares, xp.multiply(g, g, out=root), out=squares)
        self._root(squares, power, root, xp)
        xp.multiply(root, now, out=root)
        xp.subtract(root, t, out=t)
        if self.beta:
            xp.add(t, change, out=t)
        xp.multiply(t, p, out=t)
        xp.subtract(linear, t, out=linear)
        xp.add(root, divisor, out=root)
        # Without any gradient so far all may be 0: then 0 / tiny is the 0 that is meant.
        xp.maximum(root, np.finfo(p.dtype).tiny, out=root)
        xp.maximum(linear, low, out=t)
        xp.minimum(t, high, out=t)
        xp.subtract(t, linear, out=t)
        xp.divide(t, root, out=p)

    def _root(self, squares: Array, power: Any, out: Array, xp: Any) -> None:
        if self.lr_power == -0.5:
            xp.sqrt(squares, out=out)
        else:
            xp.power(squares, power, out=out)


class FTRL(Optimizer):
    """FTRL-Proximal over parameters, or (without parameters) a description; hyper-parameters as tf.keras."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-3,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
        *,
        maximize: bool = False,
    ):
        values = (lr, lr_power, initial_accumulator_value, l1, l2, l2_shrinkage, beta)
        super().__init__(params, FTRLRule(*values, maximize=maximize))


Ftrl = FTRL
"""The name that it has in Keras."""
