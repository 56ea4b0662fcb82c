"""Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011; torch.optim.Adagrad)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from psframework.backend import Array
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import Scalars, State, UpdateRule, penalised
from psframework.optim.schedule import Rate

_SUM = "sum"


@dataclasses.dataclass(frozen=True)
class AdagradRule(UpdateRule):
    """Adagrad's arithmetic. Slot: `sum`, of squared gradients."""

    name = "adagrad"
    lr: Rate = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        for field in ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            self._require(getattr(self, field) >= 0, field, "at least 0")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        return {_SUM: self.initial_accumulator_value}

    def coefficients(self, step: int) -> tuple[float, ...]:
        """The decayed rate, eps, weight decay."""
        return self.rate(step) / (1 + (step - 1) * self.lr_decay), self.eps, self.weight_decay

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place."""
        rate, eps, decay = c
        xp = scratch.xp
        total, t = state[_SUM], scratch.like(p, 0)
        if self.weight_decay:
            g = penalised(p, g, decay, scratch)
        xp.multiply(g, g, out=t)
        xp.add(total, t, out=total)
        xp.sqrt(total, out=t)
        xp.add(t, eps, out=t)
        xp.divide(g, t, out=t)
        xp.multiply(t, rate, out=t)
        xp.subtract(p, t, out=p)


class Adagrad(Optimizer):
    """Adagrad over parameters, or (without parameters) a description; arguments as torch.optim.Adagrad."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ):
        super().__init__(params, AdagradRule(lr, lr_decay, weight_decay, initial_accumulator_value, eps))
