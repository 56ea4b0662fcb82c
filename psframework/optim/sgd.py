"""Stochastic gradient descent, with momentum and Nesterov's variant (torch.optim.SGD)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from psframework.backend import Array
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import Scalars, State, UpdateRule, penalised
from psframework.optim.schedule import Rate

_BUFFER = "momentum_buffer"


@dataclasses.dataclass(frozen=True)
class SGDRule(UpdateRule):
    """SGD's arithmetic. Slot (with momentum): `momentum_buffer`."""

    name = "sgd"
    lr: Rate = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        self._require(self.momentum >= 0, "momentum", "at least 0")
        self._require(self.weight_decay >= 0, "weight_decay", "at least 0")
        plain = self.momentum > 0 and self.dampening == 0
        self._require(plain or not self.nesterov, "nesterov", "False without momentum or with dampening")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        return {_BUFFER: 0.0} if self.momentum else {}

    def sparse_obstacle(self) -> str:
        """Momentum and weight decay move every row."""
        if self.momentum or self.weight_decay:
            return f"{'momentum' if self.momentum else 'weight_decay'} changes every row in each step"
        return ""

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Rate; momentum and the gradient's share in it, which is all at the first step; weight decay."""
        share = 1.0 if step == 1 else 1.0 - self.dampening
        return self.rate(step), self.momentum, share, self.weight_decay

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place."""
        rate, momentum, share, decay = c
        xp, temporary = scratch.xp, scratch.like(p, 0)
        if self.weight_decay:
            g = penalised(p, g, decay, scratch)
        if self.momentum:
            g = self._with_momentum(g, state[_BUFFER], (momentum, share), scratch)
        xp.multiply(g, rate, out=temporary)
        xp.subtract(p, temporary, out=p)

    def _with_momentum(self, g: Array, buffer: Array, c: Scalars, scratch: Scratch) -> Array:
        momentum, share = c
        xp, temporary = scratch.xp, scratch.like(g, 0)
        xp.multiply(buffer, momentum, out=buffer)
        if self.dampening:
            xp.multiply(g, share, out=temporary)
            xp.add(buffer, temporary, out=buffer)
        else:
            xp.add(buffer, g, out=buffer)
        if not self.nesterov:
            return buffer
        xp.multiply(buffer, momentum, out=temporary)
        xp.add(temporary, g, out=temporary)
        return temporary


class SGD(Optimizer):
    """SGD over parameters, or (without parameters) a description; arguments as torch.optim.SGD."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, SGDRule(lr, momentum, dampening, weight_decay, nesterov, maximize=maximize))
