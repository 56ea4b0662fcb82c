"""Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011; torch.optim.Adagrad), for each element or each row."""

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

    def sparse_obstacle(self) -> str:
        """Only weight decay changes rows without a gradient."""
        return "weight_decay changes every row in each step" if self.weight_decay else ""

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


@dataclasses.dataclass(frozen=True)
class RowWiseAdagradRule(AdagradRule):
    """Adagrad with one accumulator a row, which grows by the mean square of the row's gradient.

    As DLRM's RWSAdagrad and torchrec's EXACT_ROWWISE_ADAGRAD (Mudigere et al., arXiv:2104.05158): the state
    of a table of rows of 64 numbers is a 64th of Adagrad's. Slot: `sum`, of shape (rows, 1, ...).
    """

    name = "rowwise_adagrad"
    grain = "row"
    row_slots = frozenset((_SUM,))
    eps: float = 1e-8

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates whole rows in place."""
        rate, eps, decay = c
        xp = scratch.xp
        total, t = state[_SUM], scratch.like(p, 0)
        if self.weight_decay:
            g = penalised(p, g, decay, scratch)
        xp.multiply(g, g, out=t)
        # `t` is contiguous whatever the parameter is, so each row's sum is the same however rows are cut.
        xp.add(total, t.reshape(total.size, -1).mean(axis=1).reshape(total.shape), out=total)
        factor = xp.sqrt(total, out=xp.empty_like(total))
        xp.add(factor, eps, out=factor)
        xp.divide(rate, factor, out=factor)
        xp.multiply(g, factor, out=t)
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
        *,
        maximize: bool = False,
    ):
        rule = AdagradRule(lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize=maximize)
        super().__init__(params, rule)


class RowWiseAdagrad(Optimizer):
    """Adagrad with one accumulator for each row of a parameter; arguments as Adagrad's."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ):
        values = (lr, lr_decay, weight_decay, initial_accumulator_value, eps)
        super().__init__(params, RowWiseAdagradRule(*values, maximize=maximize))
